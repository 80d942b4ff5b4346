/* SPDX-License-Identifier: Apache-2.0 */
/* libodc: On-Demand Communication for sharded data-parallel training (arXiv 2601.19362).
 *
 * A shard is a 1-D tensor divided over ranks. Its owners publish their slices once per minibatch; any rank gathers
 * the whole shard and scatter-adds gradients into the owners' accumulators, one-sidedly, any number of times or not at
 * all. The one wait for all ranks is odc_minibatch_sync.
 *
 *     init, register ─► write slice ─► publish ─► (gather, compute, scatter_add)* ─► minibatch_sync ─► read gradients ─┐
 *                          ▲───────────────────────────── next minibatch ─────────────────────────────────────────────┘
 *
 * Every function returns ODC_OK or an error (< 0) whose message is in odc_last_error(). Structs begin with struct_size
 * (set it to sizeof), a zero field means the default, and outputs are filled up to the caller's size.
 * Threads: contexts are independent. Within one, gathers, additions, waits and claims may run concurrently, also on one shard;
 * every other call runs alone. Every wait has a deadline, ends when a peer dies, and calls `interrupted`. No call is a
 * cancellation point. */
#ifndef ODC_ODC_H
#define ODC_ODC_H
#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ < 8
#error "libodc is for 64-bit programs: compile for a 64-bit target, without -m32 and -mx32"
#endif
#include <stddef.h>
#include <stdint.h>
#define ODC_VERSION_MAJOR 0
#define ODC_VERSION_MINOR 1
#define ODC_VERSION_PATCH 0
#if defined(__GNUC__)
#define ODC_API __attribute__((visibility("default")))
#else
#define ODC_API
#endif
#ifdef __cplusplus
extern "C" {
#endif
typedef struct odc_context odc_context; /* one rank's membership in one job */
typedef struct odc_shard odc_shard;     /* one shard of a context; lives until odc_destroy */
/* Values are fixed for ever; new ones may be added. */
typedef enum odc_status {
    ODC_OK = 0,   /* the call did what it says */
    ODC_DONE = 1, /* odc_claim: nothing is left to hand out; not an error */
    /* This call changed nothing and nothing sticks: */
    ODC_ERROR_ARGUMENT = -1,  /* the arguments are wrong */
    ODC_ERROR_PHASE = -2,     /* call not allowed at this point (unpublished, published twice, after shutdown, after fork) */
    ODC_ERROR_NO_MEMORY = -3, /* says how much was needed and how much there is */
    ODC_ERROR_UNSUPPORTED = -4, /* this build or machine cannot do it; says why */
    ODC_ERROR_SYSTEM = -5,      /* the operating system refused; says which call */
    ODC_ERROR_INTERRUPTED = -6, /* `interrupted` returned non-zero; call again (odc_init: on all ranks, not with PMIx) */
    ODC_ERROR_RENDEZVOUS = -7,  /* odc_init: the ranks did not meet; says who was missing or why */
    ODC_ERROR_INTERNAL = -8,    /* a fault in the library; says which */
    /* Job errors: the first one sticks to the context and reaches all ranks with its message: */
    ODC_ERROR_PEER_LOST = -9, /* a rank died, called exec, or left while it was needed */
    ODC_ERROR_ABORTED = -10,  /* a rank called odc_abort */
    ODC_ERROR_TIMEOUT = -11,  /* a rank missed the deadline; says what each missing rank last did */
    ODC_ERROR_MISMATCH = -12, /* ranks disagree about a shard or a reduction; names both */
    ODC_ERROR_DEVICE = -13    /* a rank's GPU failed, whoever's kernel caused it; has CUDA's message */
} odc_status;

/* Element types, ODC_BYTES for parameters only; type 0 means that the shard has no parameters, or no gradients. */
typedef enum odc_type { ODC_F32 = 1, ODC_F64 = 2, ODC_BF16 = 3, ODC_F16 = 4, ODC_BYTES = 5 } odc_type;
typedef enum odc_reduction { ODC_SUM = 1, ODC_MAX = 2 } odc_reduction;
typedef enum odc_memory { ODC_HOST_MEMORY = 1, ODC_GPU_MEMORY = 2 } odc_memory;
typedef enum odc_summation { ODC_SUM_EXACT = 1 } odc_summation; /* see odc_shard_desc */

/* ---- Joining and leaving a job ---- */
/* Fills `all` with every rank's `mine` of `bytes` bytes, in rank order; collective; returns 0, or non-zero on failure. */
typedef int (*odc_all_gather_fn)(void *arg, const void *mine, void *all, size_t bytes);
/* Called at least every 100 ms by a waiting call, on its thread; non-zero ends the wait with ODC_ERROR_INTERRUPTED, which says
 * what it waited for. Reads in flight from another host into a gather's buffer are awaited even then, while their owner
 * answers. An addition that has begun is finished first; only after 5 s without progress does non-zero abort the job. */
typedef int (*odc_interrupted_fn)(void *arg);

/* Values never change; ODC_LOG takes their names. */
typedef enum odc_log_level {
    ODC_LOG_ERROR = 1, /* the job has failed, and why */
    ODC_LOG_WARN = 2,  /* it goes on, but somebody should look */
    ODC_LOG_INFO = 3,  /* joining, routes, leaving, and what a wait of seconds waits for */
    ODC_LOG_DEBUG = 4, /* each route, registration and sync, and what is tried again */
    ODC_LOG_TRACE = 5  /* each call that moves data */
} odc_log_level;
/* Called with a line of the log, without a newline; the text is valid during the call. On threads that are in a call of
 * the context, where `interrupted` is called and before the call returns, so on several at once if calls run concurrently.
 * Until then at most 1,000 lines wait; more are only counted. It should return soon, and must not call libodc. */
typedef void (*odc_log_fn)(void *arg, int32_t level, const char *line);

/* Strings are copied. Zero fields come from the environment (`odc info --settings`). Callbacks must not throw or longjmp;
 * one that calls pthread_exit ends its call as an interruption does. */
typedef struct odc_config {
    uint64_t struct_size;
    int32_t rank;                 /* used if size > 0 */
    int32_t size;                 /* ranks of the job; 0: from odc run, torchrun, mpirun or Slurm */
    const char *job;              /* ranks of one host meet under this name; NULL: the launcher's job id */
    const char *group;            /* tells several contexts of one job apart ("actor", "critic"); NULL: "" */
    const char *rendezvous;       /* "host:port" or "[v6]:port" of rank 0; needs `secret`; NULL: ODC_RENDEZVOUS */
    const char *secret;           /* shared by all ranks; NULL: ODC_SECRET */
    int64_t timeout_ms;           /* deadline of every wait; 0: ODC_TIMEOUT_MS, or 600,000 */
    odc_all_gather_fn all_gather; /* bootstrap by this instead (MPI, torch); called once, with several hosts more often */
    void *all_gather_arg;
    odc_interrupted_fn interrupted;
    void *interrupted_arg;
    const char *host;   /* equal for the ranks that share memory; NULL: ODC_HOST_ID, or this machine */
    const char *device; /* this rank's GPU for shards in GPU memory, as "cuda:0"; NULL: ODC_DEVICE, or none */
    odc_log_fn log;     /* is handed the lines of the log, which go to standard error otherwise */
    void *log_arg;
    int32_t log_level, reserved; /* the odc_log_level up to which lines are made; 0: ODC_LOG, or warn. reserved: 0 */
} odc_config;

/* Joins the job and waits for all its ranks; NULL config: all defaults. On failure *out is NULL. Any number of contexts
 * at once, and a new one after odc_destroy, is fine. A child made by fork() must not use the context; slices
 * are not mapped there. Looking up a host name takes the resolver's time: no deadline and no `interrupted` ends it. */
ODC_API odc_status odc_init(const odc_config *config, odc_context **out);
ODC_API int32_t odc_rank(const odc_context *context); /* this rank's number, from 0; -1 for NULL */
ODC_API int32_t odc_size(const odc_context *context); /* how many ranks the job has; -1 for NULL */
ODC_API uint64_t odc_minibatch(const odc_context *context); /* the number of the running minibatch, from 0; never wraps */
/* Leaves the job, without waiting for calls of others. Who waits for it later gets "rank 3 left in minibatch 7". Its slices stay. */
ODC_API odc_status odc_shutdown(odc_context *context);
/* Ends every rank's waits and operations with `text` (NULL: none; cut after 2,043 bytes in all), as ODC_ERROR_ABORTED. */
ODC_API odc_status odc_abort(odc_context *context, const char *text);
/* Leaves if need be and frees everything, the slices too. No other call may be running. NULL is fine. */
ODC_API void odc_destroy(odc_context *context);

/* ---- Shards ---- */
/* All listed ranks register the same description in the same minibatch, in any order. With ODC_SUM_EXACT (f32, bf16, f16) the sums'
 * bits depend on the gradients only, not on order, ranks, hosts, slices or memory: they are 64-bit integers in units of largest /
 * 2^51, of which sync makes f32 in place. A minibatch's `largest` is 64 times the largest sum of the one before: it falls by half at
 * a time, but is never above 2^20 times that. A gradient not below it is added as the value just below, counted in odc_stats, logged,
 * and raises the next `largest` 64-fold. What f32 cannot hold reads NaN. After more than 4,096 additions the owner's sync aborts. */
typedef struct odc_shard_desc {
    uint64_t struct_size;
    const char *name;         /* 1..255 bytes, copied; unique among this context's registered shards */
    uint64_t numel;           /* elements of the whole shard */
    int32_t parameter_type;   /* odc_type, or 0: no parameters (a gradient shard) */
    int32_t gradient_type;    /* of what odc_scatter_add is handed; accumulated in f32 (f64 for f64); 0: no gradients */
    const int32_t *ranks;     /* `rank_count` distinct ranks of the job; NULL: all, in order */
    const uint64_t *slices;   /* elements per listed rank, adding up to numel; NULL: equal, as torch.chunk divides */
    uint64_t rank_count;      /* 0 with `ranks` NULL */
    int32_t memory, reserved; /* odc_memory of the slices and of buffers given with them, 0: host. reserved: 0 */
    int32_t sum;   /* odc_summation; 0: in f32 (f64), in the order in which gradients come, on which the last bits depend */
    float largest; /* exact sums: all gradients of the first minibatch are below this power of two; 0: 1,024 (f16: 65,536) */
} odc_shard_desc;
/* Allocates this rank's slices (zeros) and registers them; waits for nobody. Several, of one struct_size: all or none, in one region. */
ODC_API odc_status odc_register_shard(odc_context *context, const odc_shard_desc *desc, odc_shard **out);
ODC_API odc_status odc_register_shards(odc_context *context, const odc_shard_desc *descs, size_t count, odc_shard **out);
/* This rank's part of a shard. The pointers belong to the library and stay valid until odc_destroy or odc_release_shard
 * (GPUs must be done with them), also after an error. Write parameters, touch gradients only between sync and publish. */
typedef struct odc_slice {
    uint64_t struct_size;
    void *parameters;         /* `numel` elements of parameter_type; NULL if there are none */
    void *gradients;          /* `numel` sums of accumulator_type; NULL if there are none */
    uint64_t offset, numel;   /* offset of the first element in the shard; numel 0: empty, neither published nor waited for */
    int32_t parameter_type, accumulator_type; /* odc_type or 0; ODC_F32, ODC_F64 or 0 */
    int32_t memory, reserved; /* odc_memory: pointers to GPU memory are for the GPU only. reserved: 0 */
    int32_t sum;   /* odc_summation or 0 */
    float largest; /* of the next minibatch, as its sums ask; negative: it has none. A checkpoint keeps the ranks' maximum */
} odc_slice;
ODC_API odc_status odc_get_slice(const odc_shard *shard, odc_slice *out);
/* Gives the slices' memory back, between sync and publish; local. Its name may be used again in a later minibatch. */
ODC_API odc_status odc_release_shard(odc_shard *shard);

/* ---- A minibatch ---- */
/* "My slice holds this minibatch's parameters": lets peers read it and opens its accumulator at zero. Once per shard
 * and minibatch; odc_publish_all publishes the shards that are left, and it is an error if none is. Waits for nobody.
 * `stream`, here and below: NULL for host memory; for GPU memory a CUDA stream of that GPU (NULL: the legacy default), not being
 * captured. It takes effect when the stream reaches it; if that fails, a later call says so, at the latest the sync or shutdown. The
 * host waits for owners whose streams have not published, for staging, and at 512 pending calls: no work may depend on later work. */
ODC_API odc_status odc_publish(odc_shard *shard, void *stream);
ODC_API odc_status odc_publish_all(odc_context *context, void *stream);
/* Fills `full` (the shard's `numel` elements of parameter_type) with the shard; waits for each owner's publish only. */
ODC_API odc_status odc_gather(odc_shard *shard, void *full, uint64_t numel, void *stream);
/* Adds `full` (numel elements of gradient_type) into all owners' accumulators, each element exactly once (GPUs flush
 * subnormal f32 in default sums). Waits as odc_gather, before it adds anything. Once it returns (GPU: is done), `full` may be reused. */
ODC_API odc_status odc_scatter_add(odc_shard *shard, const void *full, uint64_t numel, void *stream);
/* A gather or an addition in two halves: start waits for no publish, odc_wait (or odc_minibatch_sync) completes; till then
 * the buffer is the library's. Each is waited for once, after odc_shutdown too; ODC_ERROR_INTERRUPTED leaves it waiting. */
ODC_API odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation);
ODC_API odc_status odc_scatter_add_start(odc_shard *shard, const void *full, uint64_t numel, void *stream, uint64_t *operation);
ODC_API odc_status odc_wait(odc_context *context, uint64_t operation);
/* Ends this rank's additions to the shard in this minibatch: its host's sums for other hosts may then go before the sync. */
ODC_API odc_status odc_finish(odc_shard *shard, void *stream);
/* Completes this rank's operations, on streams too, arrives, and returns once all ranks of the job have: the one wait for
 * all. Then gradients are final, elements nobody added to are zero, and the slices are this rank's until it publishes. */
ODC_API odc_status odc_minibatch_sync(odc_context *context);
/* In the sync, or between sync and publish: combines `count` <= 64 values by `op`, an odc_reduction; all ranks get equal bits. */
ODC_API odc_status odc_minibatch_sync_reduce(odc_context *context, double *values, size_t count, int32_t op);
ODC_API odc_status odc_all_reduce(odc_context *context, double *values, size_t count, int32_t op);
/* An exact sum (losses, tokens) has the same bits whichever rank adds which values, in any order: an integer in units
 * of 2^-64, as ODC_EXACT_DIGITS doubles, zeros at first. odc_exact_add rounds values, below 2^94, to a unit. ODC_SUM adds digits of
 * up to 2^20 ranks exactly, ten exact sums in a call; odc_exact_value makes the nearest double of digits. Both need no context. */
#define ODC_EXACT_DIGITS 6
ODC_API odc_status odc_exact_add(double *digits, const double *values, size_t count);
ODC_API odc_status odc_exact_value(const double *digits, double *value);

/* ---- Work that ranks claim, and how fast they are ---- */
/* Hands out the minibatch's `count` items, at most 2^32-1, 0, 1, ..., each to one rank; ODC_DONE and *index = count when none is left.
 * All that claim name the same count (else ODC_ERROR_MISMATCH). Waits for no rank's calls. An interrupted one is called again. */
ODC_API odc_status odc_claim(odc_context *context, uint64_t count, uint64_t *index);
/* Up to `capacity` items that this rank claimed in `minibatch` (the running one or the one before), in order; *count: how many. */
ODC_API odc_status odc_get_claims(const odc_context *context, uint64_t minibatch, uint64_t *indices, size_t capacity, size_t *count);
/* What this rank computes in the running minibatch, in odc_plan's units, with what it claimed; the last value before sync counts. */
ODC_API odc_status odc_report_cost(odc_context *context, double cost);
/* Ranks' speeds, relative to their mean: reported cost per second from first publish to sync, less waits for publishes; the
 * newest minibatch has weight 0.3. 1: not measured yet. `count`: of ranks. All ranks read equal bits between the same two syncs. */
ODC_API odc_status odc_get_speeds(const odc_context *context, double *speeds, size_t count);

/* ---- Where the time went (always on; totals since odc_init) ---- */
typedef struct odc_stats {
    uint64_t struct_size, gather_calls;
    uint64_t gather_bytes; /* handed to this rank, its own slices included */
    uint64_t scatter_add_calls, scatter_add_bytes, syncs; /* bytes: of gradients handed in */
    uint64_t publish_wait_ns; /* waited for owners' publishes */
    uint64_t sync_wait_ns;    /* waited for the last rank to arrive in sync, or to reduce */
    uint64_t lock_wait_ns;    /* waited for another rank's addition to the same stripe */
    uint64_t slice_bytes;     /* of memory in this rank's slices now */
    uint64_t packets_sent;    /* small messages to other hosts */
    uint64_t pinned_bytes;    /* of host memory for GPUs: host shadows of slices, and staging */
    uint64_t clamped_addends; /* to this rank's exact sums: gradients' elements that were not below `largest` */
    uint64_t sync_last_rank;  /* the rank that arrived last in the last sync; 0 before the first */
    uint64_t fetched_bytes;   /* of slices of other hosts that this rank read, for itself or into its host's node cache */
    uint64_t served_bytes;    /* of those handed to this rank, the part that came out of the node cache */
    uint64_t sent_bytes;      /* of gradients, or of a host's sums of them, added to slices of other hosts */
} odc_stats;
typedef struct odc_peer_stats {
    uint64_t struct_size;
    uint64_t publish_wait_ns; /* the part of odc_stats' publish_wait_ns spent on that peer */
    uint64_t sync_late_ns;    /* how much later than this rank the peer arrived in sync, summed */
    uint64_t sync_last;       /* in how many syncs the peer was the last of all */
} odc_peer_stats;
ODC_API odc_status odc_get_stats(const odc_context *context, odc_stats *out);
ODC_API odc_status odc_get_peer_stats(const odc_context *context, int32_t rank, odc_peer_stats *out);

/* ---- Balancing a minibatch (needs no context; paper section 4) ---- */
typedef enum odc_policy {
    ODC_LOCAL_SORT = 1, /* rank r takes samples r, r + ranks, ..., shortest first; one sample a microbatch */
    ODC_LB_MICRO = 2,   /* equal sample counts and equal microbatch counts: what collectives need */
    ODC_LB_MINI = 3,    /* only the minibatch is balanced; microbatch counts differ: needs ODC */
    ODC_SORTED_ROWS = 4 /* equal microbatch counts, those of similar cost run together: the best for collectives */
} odc_policy;
typedef struct odc_plan_request {
    uint64_t struct_size;
    const uint64_t *lengths; /* tokens of each sample, each in 1..max_tokens */
    uint64_t count;          /* samples */
    uint64_t max_tokens;     /* budget of a microbatch */
    double a, b;             /* a sample of s tokens costs a*x*x + b*x, x = s/32000; both 0: linear (a=0, b=1) */
    int32_t ranks, policy;   /* to divide over; an odc_policy */
    const double *speeds;    /* of each rank, relative, > 0, as odc_get_speeds has them; NULL: equal. LB-Mini only */
    double tail;             /* share of the cost, 0..1, that is left to be claimed: the cheapest samples. LB-Mini only */
} odc_plan_request;
typedef struct odc_plan_summary {
    uint64_t struct_size;
    double makespan;            /* the costliest rank's cost */
    double lower_bound;         /* no assignment of these samples to these ranks is below this */
    double collective_makespan; /* if ranks wait for each other after each microbatch, as collectives do */
    uint64_t items;             /* left to be claimed: odc_claim's `count` */
} odc_plan_summary;
/* Writes each sample's rank and microbatch (0, 1, ..., in the order to run them); fills *summary unless NULL. A sample that is left
 * to be claimed has rank -1, and its item, which is a microbatch, too; the first is the costliest. Costs are divided by a rank's
 * speed, relative to the mean; an item counts for the rank that is free first. */
ODC_API odc_status odc_plan(const odc_plan_request *request, int32_t *rank_of, int32_t *microbatch_of, odc_plan_summary *summary);
/* Lookahead: plans the next minibatches together. With few samples a rank the longest sample decides a minibatch's time, so
 * long ones are put into one minibatch, and the others become short. Each minibatch keeps its number of samples. */
typedef enum odc_window_order {
    ODC_WINDOW_EXCHANGED = 1, /* the few exchanges between minibatches that save most, within the limits below */
    ODC_WINDOW_SORTED = 2     /* by cost, the costliest first, no exchanges: nearly all samples move, or none if that gains nothing */
} odc_window_order;
typedef struct odc_window_request {
    uint64_t struct_size;
    const odc_plan_request *samples; /* all of the window, in the order of the data; `policy` plans each minibatch */
    const uint64_t *counts;          /* samples of each minibatch; NULL: equally many */
    double most_moved;               /* share of the samples that may change their minibatch; 0: the default, 0.2 */
    double most_displacement;        /* by how many minibatches a sample moves, mean over all; 0: the default, 0.5 */
    int32_t minibatches, order;      /* 1..16; an odc_window_order */
} odc_window_request;
typedef struct odc_window_summary {
    uint64_t struct_size;
    double makespan, makespan_before; /* sums over the minibatches; before: in the order of the data */
    double collective_makespan, collective_makespan_before;
    double lower_bound;                             /* no order of these samples on these ranks is below this */
    double moved, displacement;                     /* as most_moved and most_displacement limit them */
    double token_variation, token_variation_before; /* of a minibatch's tokens: standard deviation / mean */
    double tokens; /* of a minibatch, mean over the window: the divisor for gradients of a loss that is a sum over tokens */
} odc_window_summary;
/* Writes each sample's minibatch (0, 1, ...), rank and microbatch; fills *summary unless NULL. Never slower than odc_plan alone. */
ODC_API odc_status odc_plan_window(const odc_window_request *request, int32_t *minibatch_of, int32_t *rank_of,
                                   int32_t *microbatch_of, odc_window_summary *summary);
/* The cost coefficients of "linear", "1.5b" or "7b" (fitted by the paper's authors). */
ODC_API odc_status odc_plan_cost(const char *model, double *a, double *b);

/* ---- What this library and this machine are ---- */
ODC_API uint32_t odc_version(void); /* major << 16 | minor << 8 | patch */
ODC_API const char *odc_build(void); /* build, ", layout N" (docs/abi.md), machine, host loops chosen, in one line; never NULL */
ODC_API const char *odc_status_string(int32_t status); /* what a status means, such as "wrong argument"; never NULL */
ODC_API const char *odc_last_error(void); /* the message of this thread's last failed call; never NULL */
/* One transport or setting: row `index` of a table, 0, 1, ... until ODC_ERROR_ARGUMENT; strings are static unless said. */
typedef struct odc_transport {
    uint64_t struct_size;
    const char *name;
    const char *why_not; /* NULL: ready; else the reason, valid until this thread's next call. libfabric takes 0.3 s */
} odc_transport;
typedef struct odc_setting {
    uint64_t struct_size;
    const char *name, *fallback, *help; /* the environment variable, its default, and what it is; never NULL */
} odc_setting;
ODC_API odc_status odc_get_transport(size_t index, odc_transport *out);
ODC_API odc_status odc_get_setting(size_t index, odc_setting *out);
/* This machine, or the one that hwloc recorded in `file` (NULL: this one, or ODC_TOPOLOGY_XML's), and its routes with
 * odc_route's fields, as JSON (a GPU's route of access "none" names the nearest NIC; "unmet_requirement": why ODC_REQUIRE would
 * refuse it, or null); in *xml, unless NULL, a record of this machine. Valid until this thread's next call. */
ODC_API odc_status odc_get_topology(const char *file, const char **json, const char **xml);
/* The route to a rank's memory of one kind (odc_memory); its strings live as long as the context. */
typedef struct odc_route {
    uint64_t struct_size;
    const char *transport; /* "cuda", "shm", "fabric"; NULL: there is no route */
    const char *provider, *nic, *peer_nic; /* libfabric's; the NICs at both ends; NULL inside a host */
    const char *why;       /* why it is this route, or none */
    const char *why_not;   /* why the other transports are not used; "": there is no reason to give */
    const char *access; /* how gathers read: "direct", or "staged" in the library's buffers; "none": there is no route */
} odc_route;
ODC_API odc_status odc_get_route(const odc_context *context, int32_t rank, int32_t memory, odc_route *out);
#ifdef __cplusplus
}
#endif
#endif
