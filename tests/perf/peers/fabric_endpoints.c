/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric_peers.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void check(long status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "bare loop: %s: %s\n", what, fi_strerror((int)-status));
        exit(1);
    }
}

static struct fi_info *find(const struct options *o, const char *address) {
    struct fi_info *hints = fi_allocinfo(), *out;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->fabric_attr->prov_name = strdup(o->provider);
    if (o->op == OP_WRITE) {
        hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    }
    int status = fi_getinfo(FI_VERSION(1, 17), address, NULL, FI_SOURCE, hints, &out);
    if (status != 0) {
        fprintf(stderr, "bare loop: no provider '%s' at %s: %s\n", o->provider, address, fi_strerror(-status));
        exit(1);
    }
    fi_freeinfo(hints);
    return out;
}

static struct fid_mr *enlist(struct peers *p, struct endpoint *at, char *memory, size_t bytes, uint64_t access) {
    static uint64_t key = 1;
    struct fid_mr *mr;
    check(fi_mr_reg(p->domain, memory, bytes, access, 0, key++, 0, &mr, NULL), "fi_mr_reg");
    if (p->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        check(fi_mr_bind(mr, &at->ep->fid, 0), "fi_mr_bind");
        check(fi_mr_enable(mr), "fi_mr_enable");
    }
    return mr;
}

static void open_endpoint(struct peers *p, struct endpoint *at) {
    size_t depth = (size_t)p->options.depth;
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .size = 4 * depth + 64};
    cq.wait_obj = p->options.wait == WAIT_SLEEP ? FI_WAIT_FD : FI_WAIT_NONE;
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = (size_t)p->bootstrap.size};
    check(fi_endpoint(p->domain, p->info, &at->ep, NULL), "fi_endpoint");
    check(fi_cq_open(p->domain, &cq, &at->cq, NULL), "fi_cq_open");
    check(fi_av_open(p->domain, &av, &at->av, NULL), "fi_av_open");
    check(fi_ep_bind(at->ep, &at->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind to the queue");
    check(fi_ep_bind(at->ep, &at->av->fid, 0), "fi_ep_bind to the addresses");
    check(fi_enable(at->ep), "fi_enable");
    if (p->options.wait == WAIT_SLEEP) {
        check(fi_control(&at->cq->fid, FI_GETWAIT, &at->wait_fd), "fi_control FI_GETWAIT");
    }
    at->local_mr =
        enlist(p, at, p->local, p->options.bytes + p->receive_buffer, FI_SEND | FI_RECV | FI_READ | FI_WRITE);
    at->remote_mr = enlist(p, at, p->shared, p->options.bytes, FI_REMOTE_READ | FI_REMOTE_WRITE);
}

char *allocate(size_t bytes) {
    char *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED) {
        fprintf(stderr, "bare loop: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(out, bytes, MADV_HUGEPAGE); /* if it is refused, small pages are used */
    return memset(out, 0, bytes);
}

void open_all(struct peers *p) {
    struct options *o = &p->options;
    p->info = find(o, o->address != NULL ? o->address : p->bootstrap.address);
    p->local = allocate(o->bytes + p->receive_buffer);
    p->shared = allocate(o->bytes);
    if (o->op == OP_ADD) {
        p->sums = (float *)(void *)allocate(p->slice);
        p->locks = calloc(p->slice / STRIPE_BYTES + 1, sizeof(*p->locks));
    }
    check(fi_fabric(p->info->fabric_attr, &p->fabric, NULL), "fi_fabric");
    check(fi_domain(p->fabric, p->info, &p->domain, NULL), "fi_domain");
    struct peer_info info = {.base =
                                 p->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)p->shared : 0};
    for (int e = 0; e < o->endpoints; ++e) {
        open_endpoint(p, &p->endpoints[e]);
        size_t length = MAX_NAME;
        check(fi_getname(&p->endpoints[e].ep->fid, info.name[e], &length), "fi_getname");
        info.key[e] = fi_mr_key(p->endpoints[e].remote_mr);
    }
    p->infos = calloc((size_t)p->bootstrap.size, sizeof(info));
    all_gather(&p->bootstrap, &info, sizeof(info), p->infos, serve, p);
    for (int e = 0; e < o->endpoints; ++e) {
        p->endpoints[e].peers = calloc((size_t)p->bootstrap.size, sizeof(fi_addr_t));
        for (int r = 0; r < p->bootstrap.size; ++r) {
            check(fi_av_insert(p->endpoints[e].av, p->infos[r].name[e], 1, &p->endpoints[e].peers[r], 0, NULL),
                  "fi_av_insert");
        }
    }
}

void close_all(struct peers *p) {
    for (int e = 0; e < p->options.endpoints; ++e) {
        struct endpoint *at = &p->endpoints[e];
        fi_close(&at->ep->fid);
        fi_close(&at->local_mr->fid);
        fi_close(&at->remote_mr->fid);
        fi_close(&at->cq->fid);
        fi_close(&at->av->fid);
    }
    fi_close(&p->domain->fid);
    fi_close(&p->fabric->fid);
    fi_freeinfo(p->info);
}
