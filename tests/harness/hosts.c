/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>

enum { MOST_RANKS = 64, MAX_JOBS = 128, MAX_BYTES = 2048, TIMEOUT_S = 30 };

struct host_job;

typedef struct member {
    struct host_job *host_job;
    int rank;
    int size;
    int calls;
} member;

/* The all-gather of one job's ranks. */
typedef struct host_job {
    _Atomic uint64_t key; /* 0: unused */
    atomic_int handed_in; /* contributions, in all calls */
    atomic_int read;      /* ranks that have read all contributions, in all calls */
    member members[MOST_RANKS];
    unsigned char inputs[MOST_RANKS][MAX_BYTES];
} host_job;

static host_job *jobs;
static int ranks_load_libfabric;
static char host_names[MOST_RANKS][24];

static int host_count(void) {
    const char *given = getenv("ODC_TEST_HOSTS");
    return given != NULL ? atoi(given) : 1;
}

int several_hosts(void) { return host_count() > 1; }

void needs_one_host(const char *why) {
    if (several_hosts()) {
        printf("skipped, ranks are on several hosts here: %s\n", why);
        skip();
    }
}

/* Forked ranks inherit a libfabric that has looked for its providers. It reads all symbols of the kernel for that (in Debian 12), which
 * would take most of the time of a short job. What it depends on installs signal handlers when it is loaded. */
static void initialize_libfabric(void) {
    enum { VERSION_1_17 = 1 << 16 | 17 };
    static void *providers; /* kept, as libfabric is */
    struct sigaction handlers[NSIG];
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const void *, void **) = NULL;
    for (int number = 1; number < NSIG; ++number) {
        sigaction(number, NULL, &handlers[number]);
    }
    void *library = dlopen("libfabric.so.1", RTLD_NOW);
    if (library != NULL) {
        *(void **)&getinfo = dlsym(library, "fi_getinfo");
    }
    if (getinfo != NULL) {
        getinfo(VERSION_1_17, NULL, NULL, (uint64_t)1 << 54 /* FI_PROV_ATTR_ONLY */, NULL, &providers);
    }
    for (int number = 1; number < NSIG; ++number) {
        sigaction(number, &handlers[number], NULL);
    }
}

void let_ranks_load_libfabric(void) { ranks_load_libfabric = 1; }

void prepare_hosts(void) {
    if (jobs == NULL) {
        jobs = share(MAX_JOBS * sizeof *jobs);
        if (several_hosts() && !ranks_load_libfabric) {
            initialize_libfabric();
        }
    }
    for (int i = 0; i < MAX_JOBS && jobs[i].key != 0; ++i) {
        memset(&jobs[i], 0, sizeof jobs[i]);
    }
    for (int host = 0; host < MOST_RANKS; ++host) {
        snprintf(host_names[host], sizeof host_names[host], "host %d", host);
    }
}

/* Contexts of one job that differ in their groups must also differ in their sizes. */
static host_job *job_of(const char *job, int size) {
    uint64_t key = 14695981039346656037u + (uint64_t)size; /* FNV-1a */
    for (; *job != 0; ++job) {
        key = (key ^ (unsigned char)*job) * 1099511628211u;
    }
    for (int i = 0; i < MAX_JOBS; ++i) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&jobs[i].key, &found, key) || found == key) {
            return &jobs[i];
        }
    }
    CHECK(!"more jobs than a run may have");
    return NULL;
}

/* Returns false if they do not come. */
static int await(atomic_int *count, int least) {
    for (int64_t end = now_ns() + TIMEOUT_S * (int64_t)1000000000; atomic_load(count) < least; sleep_us(200)) {
        if (now_ns() > end) {
            return 0;
        }
    }
    return 1;
}

static int gather_infos(void *arg, const void *mine, void *all, size_t bytes) {
    member *self = arg;
    host_job *with = self->host_job;
    int call = self->calls++;
    CHECK(bytes <= MAX_BYTES);
    /* Wait until all have read the previous call's inputs. */
    if (!await(&with->read, call * self->size)) {
        return 1;
    }
    memcpy(with->inputs[self->rank], mine, bytes);
    /* The counter orders the inputs, as in any all-gather. */
    atomic_fetch_add(&with->handed_in, 1);
    if (!await(&with->handed_in, (call + 1) * self->size)) {
        return 1;
    }
    for (int rank = 0; rank < self->size; ++rank) {
        memcpy((char *)all + (size_t)rank * bytes, with->inputs[rank], bytes);
    }
    atomic_fetch_add(&with->read, 1);
    return 0;
}

void place_on_host(odc_config *config) {
    if (!several_hosts() || config->job == NULL || config->rank < 0 || config->rank >= config->size) {
        return;
    }
    host_job *with = job_of(config->job, config->size);
    member *mine = &with->members[config->rank];
    mine->host_job = with;
    mine->rank = config->rank;
    mine->size = config->size;
    config->host = host_names[config->rank % host_count() % MOST_RANKS];
    config->all_gather = gather_infos;
    config->all_gather_arg = mine;
}
