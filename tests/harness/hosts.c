/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include <stdio.h>

enum { MOST_RANKS = 64, MOST_MEETINGS = 128, CARD_BYTES = 2048, PATIENCE_S = 30 };

struct meeting;

typedef struct seat {
    struct meeting *meeting;
    int rank;
    int size;
    int calls;
} seat;

/* Of the ranks of one job. */
typedef struct meeting {
    _Atomic uint64_t key; /* 0: none yet */
    atomic_int handed_in; /* cards, in all calls */
    atomic_int read;      /* calls that have read all */
    seat seats[MOST_RANKS];
    unsigned char cards[MOST_RANKS][CARD_BYTES];
} meeting;

static meeting *meetings;
static char host_names[MOST_RANKS][16];

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

void prepare_hosts(void) {
    if (meetings == NULL) {
        meetings = share(MOST_MEETINGS * sizeof *meetings);
    }
    for (int i = 0; i < MOST_MEETINGS && meetings[i].key != 0; ++i) {
        memset(&meetings[i], 0, sizeof meetings[i]);
    }
    for (int host = 0; host < MOST_RANKS; ++host) {
        snprintf(host_names[host], sizeof host_names[host], "host %d", host);
    }
}

/* Contexts of one job that differ by their groups must differ by their sizes, too. */
static meeting *meeting_of(const char *job, int size) {
    uint64_t key = 14695981039346656037u + (uint64_t)size; /* FNV-1a */
    for (; *job != 0; ++job) {
        key = (key ^ (unsigned char)*job) * 1099511628211u;
    }
    for (int i = 0; i < MOST_MEETINGS; ++i) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&meetings[i].key, &found, key) || found == key) {
            return &meetings[i];
        }
    }
    CHECK(!"more jobs than a run may have");
    return NULL;
}

/* False: they do not come. */
static int await(atomic_int *count, int least) {
    for (int64_t end = now_ns() + PATIENCE_S * (int64_t)1000000000; atomic_load(count) < least; sleep_us(200)) {
        if (now_ns() > end) {
            return 0;
        }
    }
    return 1;
}

static int gather_cards(void *arg, const void *mine, void *all, size_t bytes) {
    seat *self = arg;
    meeting *with = self->meeting;
    int call = self->calls++;
    CHECK(bytes <= CARD_BYTES);
    /* Everybody has read the cards of the call before. */
    if (!await(&with->read, call * self->size)) {
        return 1;
    }
    memcpy(with->cards[self->rank], mine, bytes);
    /* What is counted orders the cards, as any all-gather would. */
    atomic_fetch_add(&with->handed_in, 1);
    if (!await(&with->handed_in, (call + 1) * self->size)) {
        return 1;
    }
    for (int rank = 0; rank < self->size; ++rank) {
        memcpy((char *)all + (size_t)rank * bytes, with->cards[rank], bytes);
    }
    atomic_fetch_add(&with->read, 1);
    return 0;
}

void place_on_host(odc_config *config) {
    if (!several_hosts() || config->job == NULL || config->rank < 0 || config->rank >= config->size) {
        return;
    }
    meeting *with = meeting_of(config->job, config->size);
    seat *mine = &with->seats[config->rank];
    mine->meeting = with;
    mine->rank = config->rank;
    mine->size = config->size;
    config->host = host_names[config->rank % host_count() % MOST_RANKS];
    config->all_gather = gather_cards;
    config->all_gather_arg = mine;
}
