/* SPDX-License-Identifier: Apache-2.0 */
/* Rank, size and job from the launchers' environments, set here by hand: complete, partial and contradictory ones.
 * cli/launchers_test.sh runs real launchers. */
#include "ranks.h"

#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 8 };

static const char *const names[] = {"ODC_RANK",
                                    "ODC_SIZE",
                                    "ODC_JOB",
                                    "ODC_RENDEZVOUS",
                                    "ODC_SECRET",
                                    "ODC_TIMEOUT_MS",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "OMPI_MCA_ess_base_jobid",
                                    "OMPI_MCA_orte_precondition_transports",
                                    "PMIX_NAMESPACE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_NNODES",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_RESTART_COUNT"};

static void forget_launchers(void) {
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        unsetenv(names[i]);
    }
}

/* "NAME=value" strings, in which "%r" is the rank, "%j" the run's random name, "%n" the size. */
typedef struct environment {
    const char *variables[MOST];
    const char *texts[5]; /* fragments of the expected error */
} environment;

static void set_one(const char *variable, int rank, int size, const char *job) {
    char text[256] = "";
    const char *value = strchr(variable, '=') + 1;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(value - 1 - variable), variable);
    for (const char *at = value; *at != '\0'; ++at) {
        char part[96] = {*at, '\0'};
        if (at[0] == '%') {
            ++at;
            if (*at == 'j') {
                snprintf(part, sizeof part, "%s", job);
            } else {
                snprintf(part, sizeof part, "%d", *at == 'r' ? rank : size);
            }
        }
        strncat(text, part, sizeof text - strlen(text) - 1);
    }
    setenv(name, text, 1);
}

static void enter(const environment *where, int rank, int size, const char *job) {
    forget_launchers();
    for (int i = 0; i < MOST && where->variables[i] != NULL; ++i) {
        set_one(where->variables[i], rank, size, job);
    }
}

/* Several contexts at once: each group has a rendezvous of its own. */
static void join_there(int rank, int size, const char *job, void *arg) {
    enter(arg, rank, size, job);
    odc_context *all = NULL;
    odc_context *critic = NULL;
    odc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.group = "critic";
    CHECK_OK(odc_init(NULL, &all));
    CHECK_OK(odc_init(&config, &critic));
    CHECK_EQUAL(odc_rank(all), rank);
    CHECK_EQUAL(odc_size(critic), size);
    CHECK_OK(odc_minibatch_sync(critic));
    CHECK_OK(odc_minibatch_sync(all));
    odc_destroy(all);
    odc_destroy(critic);
}

static const environment places[] = {
    {{"ODC_RANK=%r", "ODC_SIZE=%n", "ODC_JOB=%j", "ODC_TIMEOUT_MS=20000"}, {NULL}},
    {{"ODC_RANK=%r", "ODC_SIZE=%n", "ODC_JOB=/%j/ with \"all\" sorts of characters, and longer than any name may be"},
     {NULL}},
    {{"RANK=%r", "WORLD_SIZE=%n", "LOCAL_WORLD_SIZE=%n", "MASTER_ADDR=%j", "MASTER_PORT=29500",
      "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0"},
     {NULL}},
    {{"OMPI_COMM_WORLD_RANK=%r", "OMPI_COMM_WORLD_SIZE=%n", "OMPI_COMM_WORLD_LOCAL_SIZE=%n", "PMIX_NAMESPACE=%j"},
     {NULL}},
    {{"OMPI_COMM_WORLD_RANK=%r", "OMPI_COMM_WORLD_SIZE=%n", "OMPI_COMM_WORLD_LOCAL_SIZE=%n",
      "OMPI_MCA_ess_base_jobid=%j"},
     {NULL}},
    {{"PMI_RANK=%r", "PMI_SIZE=%n", "MPI_LOCALNRANKS=%n"}, {NULL}},
    {{"SLURM_PROCID=%r", "SLURM_NTASKS=%n", "SLURM_JOB_ID=%j", "SLURM_STEP_ID=0", "SLURM_NNODES=1"}, {NULL}},
    {{"SLURM_PROCID=%r", "SLURM_NTASKS=64", "SLURM_STEP_NUM_TASKS=%n", "SLURM_JOB_ID=%j", "SLURM_STEP_ID=3",
      "SLURM_NNODES=8", "SLURM_STEP_NUM_NODES=1"},
     {NULL}},
    /* When launchers are nested the inner one counts. */
    {{"ODC_RANK=%r", "ODC_SIZE=%n", "ODC_JOB=%j", "RANK=0", "WORLD_SIZE=77", "LOCAL_WORLD_SIZE=77"}, {NULL}},
    /* A torch environment set by hand inside a real launcher. */
    {{"SLURM_PROCID=%r", "SLURM_NTASKS=%n", "SLURM_JOB_ID=%j", "SLURM_STEP_ID=0", "SLURM_NNODES=1", "RANK=%r",
      "WORLD_SIZE=%n"},
     {NULL}},
};

static void test_each_launcher(void **state) {
    (void)state;
    needs_processes("each rank has its own environment");
    char before[17] = "";
    prctl(PR_GET_NAME, before);
    prctl(PR_SET_NAME, "hydra_pmi_proxy"); /* MPICH's ranks of one host find each other by this ancestor */
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        environment where = places[i];
        printf("%s ...\n", where.variables[0]);
        run_processes(3, join_there, &where);
    }
    prctl(PR_SET_NAME, before);
}

/* PMIX_NAMESPACE is not set: no way to meet is left, and none is promised. */
static void hear_way(void *ways, int32_t level, const char *line) {
    *(int *)ways += level == ODC_LOG_INFO && strstr(line, " joins ") != NULL &&
                    strstr(line, " of 4 ranks without a rendezvous") != NULL;
}

static void fail_there(const environment *where, odc_status status) {
    enter(where, 1, 4, "job");
    odc_context *context = (odc_context *)1;
    odc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    int ways = 0;
    config.log = hear_way;
    config.log_arg = &ways;
    config.log_level = ODC_LOG_INFO;
    check_error(odc_init(&config, &context), status, where->variables[0] != NULL ? where->variables[0] : "no launcher",
                __FILE__, __LINE__, (const char **)(uintptr_t)where->texts);
    CHECK(context == NULL);
    CHECK_EQUAL(ways, where->texts[1] != NULL && strcmp(where->texts[1], "all_gather") == 0);
    forget_launchers();
}

static const environment wrong[] = {
    {{"ODC_RANK=1"}, {"ODC_RANK", "ODC_SIZE", NULL}},
    {{"ODC_SIZE=4"}, {"ODC_RANK", "ODC_SIZE", NULL}},
    {{"ODC_RANK=4", "ODC_SIZE=4", "ODC_JOB=x"}, {"ODC_RANK=\"4\"", "from 0 to 3", NULL}},
    {{"ODC_RANK=-1", "ODC_SIZE=4", "ODC_JOB=x"}, {"ODC_RANK=\"-1\"", "from 0 to 3", NULL}},
    {{"ODC_RANK=one", "ODC_SIZE=4", "ODC_JOB=x"}, {"ODC_RANK=\"one\"", "whole number", NULL}},
    {{"ODC_RANK=1 ", "ODC_SIZE=4", "ODC_JOB=x"}, {"ODC_RANK=\"1 \"", "whole number", NULL}},
    {{"ODC_RANK=0", "ODC_SIZE=0", "ODC_JOB=x"}, {"ODC_SIZE=\"0\"", "from 1", NULL}},
    {{"ODC_RANK=0", "ODC_SIZE=99999999999999999999"}, {"ODC_SIZE", "whole number", NULL}},
    {{"RANK=1", "LOCAL_WORLD_SIZE=2"}, {"torchrun", "WORLD_SIZE", NULL}},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=4"}, {"LOCAL_WORLD_SIZE=\"4\"", "from 1 to 2", NULL}},
    {{"OMPI_COMM_WORLD_RANK=1"}, {"Open MPI", "OMPI_COMM_WORLD_SIZE", NULL}},
    {{"PMI_RANK=1", "MPI_LOCALNRANKS=4"}, {"MPICH", "PMI_SIZE", NULL}},
    {{"SLURM_PROCID=1", "SLURM_STEP_ID=0"}, {"Slurm", "SLURM_NTASKS", NULL}},
    {{"SLURM_PROCID=7", "SLURM_NTASKS=4", "SLURM_STEP_ID=0"}, {"SLURM_PROCID=\"7\"", "from 0 to 3", NULL}},
    {{"ODC_RANK=0", "ODC_SIZE=1", "ODC_JOB=x", "ODC_TIMEOUT_MS=soon"}, {"ODC_TIMEOUT_MS=\"soon\"", "number", NULL}},
    {{"ODC_RANK=0", "ODC_SIZE=1", "ODC_JOB=x", "ODC_TIMEOUT_MS=0"}, {"ODC_TIMEOUT_MS=\"0\"", "from 1", NULL}},
    {{"ODC_RANK=1", "ODC_SIZE=4", "ODC_RENDEZVOUS=node1", "ODC_SECRET=s"}, {"\"node1\"", "host:port", NULL}},
};

static void test_environments_that_make_no_sense(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        fail_there(&wrong[i], ODC_ERROR_ARGUMENT);
    }
}

/* Several hosts, or an unknown number: the error says which settings to give. */
static const environment far_apart[] = {
    {{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=none"},
     {"init: WORLD_SIZE says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_MCA_ess_base_jobid=7"},
     {"init: OMPI_COMM_WORLD_SIZE says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALNRANKS=2"},
     {"init: PMI_SIZE says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_NNODES=2"},
     {"init: SLURM_NTASKS says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"RANK=1", "WORLD_SIZE=4"},
     {"init: WORLD_SIZE says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"ODC_RANK=1", "ODC_SIZE=4"},
     {"init: ODC_SIZE says that there are 4", "all_gather", "ODC_RENDEZVOUS", "ODC_SECRET"}},
    {{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "ODC_RENDEZVOUS=127.0.0.1:5000"},
     {"127.0.0.1:5000", "ODC_SECRET"}},
};

static void test_several_hosts_without_means(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof far_apart / sizeof *far_apart; ++i) {
        fail_there(&far_apart[i], ODC_ERROR_RENDEZVOUS);
    }
}

/* The config's size is its own, whatever a launcher says. */
static void test_the_configs_size(void **state) {
    (void)state;
    static const environment four = {{"RANK=1", "WORLD_SIZE=4"}, {NULL}};
    odc_context *context = NULL;
    odc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.rank = 1;
    config.size = 3;
    enter(&four, 1, 4, "job");
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_RENDEZVOUS, "config says that there are 3 ranks");
    CHECK(context == NULL);
    forget_launchers();
}

static void test_no_launcher(void **state) {
    (void)state;
    static const environment none = {{NULL}, {"odc run", "torchrun", "mpirun|config.rank", NULL}};
    fail_there(&none, ODC_ERROR_RENDEZVOUS);
    /* A batch script and a stray variable do not make a rank. */
    static const environment batch = {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=9", "RANK=3"},
                                      {"odc run", "torchrun", "srun", NULL}};
    fail_there(&batch, ODC_ERROR_RENDEZVOUS);
}

static void test_one_rank_needs_nobody(void **state) {
    (void)state;
    static const environment alone = {{"RANK=0", "WORLD_SIZE=1"}, {NULL}};
    enter(&alone, 0, 1, "job");
    odc_context *context = NULL;
    CHECK_OK(odc_init(NULL, &context));
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
    forget_launchers();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launcher),
        cmocka_unit_test(test_environments_that_make_no_sense),
        cmocka_unit_test(test_several_hosts_without_means),
        cmocka_unit_test(test_the_configs_size),
        cmocka_unit_test(test_no_launcher),
        cmocka_unit_test(test_one_rank_needs_nobody),
    };
    forget_launchers();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
