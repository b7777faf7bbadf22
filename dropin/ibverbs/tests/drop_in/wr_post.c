// Runs the example of `man ibv_wr_post`. It needs help to be valid C: it omits `struct`, passes a structure where a
// pointer is required, names a function that does not exist, and posts before the queue pair is connected.
#include "pair.h"
#include <arpa/inet.h>
#include <string.h>

#define SLOT 64

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *peers_cq;
static struct ibv_mr *mr;
static struct ibv_qp *peer;
static char memory[4 * SLOT];
static struct ibv_qp_init_attr_ex qp_init_attr_ex;

static struct ibv_qp *create_qp(void)
{
    CHECK(qp_init_attr_ex.qp_type == IBV_QPT_RC);
    qp_init_attr_ex.send_cq = qp_init_attr_ex.recv_cq = cq;
    qp_init_attr_ex.cap.max_send_wr = 2;
    qp_init_attr_ex.cap.max_send_sge = 1;
    qp_init_attr_ex.comp_mask |= IBV_QP_INIT_ATTR_PD;
    qp_init_attr_ex.pd = pd;
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &qp_init_attr_ex);
    CHECK(qp);
    initialize(qp);
    connect_to(qp, peer->qp_num);
    connect_to(peer, qp->qp_num);
    return qp;
}
#define ibv_create_qp_ex(context, attributes) create_qp()
#define ibv_set_wr_sge ibv_wr_set_sge
typedef struct ibv_qp ibv_qp;
typedef struct ibv_qp_ex ibv_qp_ex;

int main(void)
{
    ctx = open_first_device();
    pd = ibv_alloc_pd(ctx);
    cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    peers_cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    CHECK(pd && cq && peers_cq);
    strcpy(memory, "first");
    strcpy(memory + SLOT, "second");
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr);
    peer = make_qp(pd, peers_cq, NULL);
    struct ibv_recv_wr receive = {.wr_id = 3}, *bad;
    CHECK(!ibv_post_recv(peer, &receive, &bad));

    uint64_t my_wr_id_1 = 1, my_wr_id_2 = 2;
    uint32_t lkey = mr->lkey, rkey = mr->rkey;
    uintptr_t local_addr_1 = (uintptr_t)memory, local_addr_2 = local_addr_1 + SLOT;
    uintptr_t remote_addr_1 = local_addr_2 + SLOT, remote_addr_2 = remote_addr_1 + SLOT;
    uint32_t length_1 = sizeof "first", length_2 = sizeof "second";
    int ret;
#include "ibv_wr_post-1.inc"
    CHECK(ret == 0);

    // Only the second one is signaled, and only it consumes a receive.
    struct ibv_wc wc[2];
    int count;
    while ((count = ibv_poll_cq(cq, 2, wc)) == 0)
        ;
    CHECK(count == 1 && wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == my_wr_id_2);
    CHECK(wc[0].opcode == IBV_WC_RDMA_WRITE);
    while ((count = ibv_poll_cq(peers_cq, 2, wc)) == 0)
        ;
    CHECK(count == 1 && wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == 3);
    CHECK(wc[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc[0].wc_flags & IBV_WC_WITH_IMM);
    CHECK(ntohl(wc[0].imm_data) == 0x1234 && wc[0].byte_len == length_2);
    CHECK(!strcmp((char *)remote_addr_1, "first") && !strcmp((char *)remote_addr_2, "second"));
    CHECK(ibv_poll_cq(cq, 2, wc) == 0 && ibv_poll_cq(peers_cq, 2, wc) == 0);

    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(peers_cq));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
    puts("done");
    return 0;
}
