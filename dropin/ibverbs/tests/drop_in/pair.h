// Common functions of the tests' programs: checks, and reliable queue pairs that are connected within the process.
#ifndef PAIR_H
#define PAIR_H

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline struct ibv_context *open_first_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

// RESET to INIT; peers may write.
static inline void initialize(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

// INIT to RTS, to another queue pair of this process.
static inline void connect_to(struct ibv_qp *qp, uint32_t dest_qp_num)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = dest_qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}},
    };
    CHECK(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 18;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

// Creates a queue pair in INIT with one or two entries of each kind. Without a shared receive queue it has one of its
// own.
static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    initialize(qp);
    return qp;
}

#endif
