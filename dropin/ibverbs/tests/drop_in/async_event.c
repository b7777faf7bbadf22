// Runs the example of `man ibv_get_async_event` once for each of several events, which occur while it waits.
#include "pair.h"
#include <fcntl.h>
#include <poll.h>

static struct ibv_context *ctx;
static struct ibv_async_event async_event;

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[64];
static struct ibv_srq *srq;
static struct ibv_qp *sender, *receiver;

static struct ibv_sge bytes(int length)
{
    return (struct ibv_sge){.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
}

static void drain(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
}

// A WRITE with a key that was never granted.
static void trespass(void)
{
    struct ibv_sge sge = bytes(8);
    struct ibv_send_wr write = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    write.wr.rdma.remote_addr = (uintptr_t)memory;
    write.wr.rdma.rkey = mr->rkey ^ 0x5500;
    CHECK(!ibv_post_send(sender, &write, &bad));
}

static void give_up_receiver(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(!ibv_modify_qp(receiver, &attr, IBV_QP_STATE));
}

// One of two receives is left, and the limit is two.
static void use_receive(void)
{
    struct ibv_sge sge = bytes(8);
    for (int i = 0; i < 2; i++) {
        struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!ibv_post_srq_recv(srq, &receive, &bad));
    }
    struct ibv_srq_attr attr = {.srq_limit = 2};
    CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(!ibv_post_send(sender, &send, &bad));
}

static void (*cause)(void);
static int polls;

// The first two times there is no event.
static int wait_ms(void)
{
    if (++polls == 3)
        cause();
    return 10;
}
#define ms_timeout wait_ms()

static int example(void)
{
    struct pollfd my_pollfd;
    int flags, rc;
#include "ibv_get_async_event-1.inc"
    CHECK(my_pollfd.revents == POLLIN);
    return 0;
}

static void run(void (*what)(void), enum ibv_event_type type)
{
    receiver = make_qp(pd, cq, srq);
    sender = make_qp(pd, cq, NULL);
    connect_to(receiver, sender->qp_num);
    connect_to(sender, receiver->qp_num);
    cause = what;
    polls = 0;
    CHECK(example() == 0);
    CHECK(polls >= 3);
    printf("%s\n", ibv_event_type_str(async_event.event_type));
    CHECK(async_event.event_type == type);
    if (type == IBV_EVENT_SRQ_LIMIT_REACHED)
        CHECK(async_event.element.srq == srq);
    else
        CHECK(async_event.element.qp == (what == drain ? sender : receiver));
    // These wait until their events have been acknowledged.
    CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver));
    struct ibv_async_event more;
    CHECK(ibv_get_async_event(ctx, &more) == -1);
}

int main(void)
{
    ctx = open_first_device();
    pd = ibv_alloc_pd(ctx);
    cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
    CHECK(pd && cq);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr);
    run(drain, IBV_EVENT_SQ_DRAINED);
    run(trespass, IBV_EVENT_QP_ACCESS_ERR);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    srq = ibv_create_srq(pd, &init);
    CHECK(srq);
    run(give_up_receiver, IBV_EVENT_QP_LAST_WQE_REACHED);
    run(use_receive, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
    puts("done");
    return 0;
}
