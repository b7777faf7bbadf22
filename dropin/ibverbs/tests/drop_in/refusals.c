// Makes calls that are refused; the trace contains the reasons.
#include "pair.h"
#include <errno.h>

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_qp *qp = make_qp(pd, cq, NULL);

    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        // The attributes of programs written only for InfiniBand.
        .ah_attr = {.is_global = 0, .dlid = 1, .port_num = 1},
    };
    int connected = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &attr, connected) == EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, connected | IBV_QP_MIN_RNR_TIMER | IBV_QP_QKEY) == EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, connected | IBV_QP_MIN_RNR_TIMER) == EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, connected | IBV_QP_MIN_RNR_TIMER) == EINVAL);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);

    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1}, .qp_type = IBV_QPT_XRC_SEND};
    errno = 0;
    CHECK(!ibv_create_qp(pd, &init) && errno == EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 1 << 30;
    errno = 0;
    CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
    puts("done");
    return 0;
}
