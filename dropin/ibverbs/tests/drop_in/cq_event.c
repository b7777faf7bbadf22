// Runs the examples of `man ibv_get_cq_event`: the first waits for a completion by blocking, the second by polling the
// channel's descriptor. The objects that they presuppose are created here: a channel, queue pairs, and a sender.
#include "pair.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[128];
static struct ibv_cq *senders_cq;
static struct ibv_qp *sender, *receiver;

// Sends the next message; the receiver has a receive for it.
static void send_message(void)
{
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 5, .lkey = mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(!ibv_post_send(sender, &send, &bad));
}

static void await_message(uint64_t wr_id)
{
    struct ibv_sge sge = {.addr = (uintptr_t)memory + 64, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(receiver, &receive, &bad));
}

static void *sending(void *nothing)
{
    // Most likely the example waits by then; it must also work if it does not.
    usleep(20000);
    send_message();
    return nothing;
}

static pthread_t thread;

// The part that the example marks with dots: its completion queue is armed by now.
static void between(void)
{
    receiver = make_qp(pd, cq, NULL);
    sender = make_qp(pd, senders_cq, NULL);
    connect_to(receiver, sender->qp_num);
    connect_to(sender, receiver->qp_num);
    await_message(1);
    CHECK(!pthread_create(&thread, NULL, sending, NULL));
}
#define MEANWHILE between();

static int blocking(void)
{
    int cookie;
    void *ev_ctx = &cookie;
    struct ibv_cq *ev_cq = NULL;
    struct ibv_wc wc = {0};
    int ne;
#include "ibv_get_cq_event-1.inc"
    CHECK(!pthread_join(thread, NULL));
    CHECK(ev_cq == cq && ev_ctx == &cookie);
    CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.byte_len == 5 && wc.qp_num == receiver->qp_num);
    CHECK(!memcmp(memory + 64, "hello", 5));
    return 0;
}

// Number of times that the second example was about to poll. The first two times there is no event.
static int polls;

static int wait_ms(void)
{
    if (++polls == 3) {
        await_message(2);
        send_message();
    }
    return 10;
}
#define ms_timeout wait_ms()

static int polling(void)
{
    void *ev_ctx = NULL;
    struct ibv_cq *ev_cq;
    struct pollfd my_pollfd;
    int flags, rc;
#include "ibv_get_cq_event-2.inc"
    CHECK(polls >= 3 && my_pollfd.revents == POLLIN);
    CHECK(ev_cq == cq && ev_ctx == cq->cq_context);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 2);
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    return 0;
}

int main(void)
{
    ctx = open_first_device();
    pd = ibv_alloc_pd(ctx);
    channel = ibv_create_comp_channel(ctx);
    senders_cq = ibv_create_cq(ctx, 2, NULL, NULL, 0);
    CHECK(pd && channel && senders_cq);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    strcpy(memory, "hello");

    CHECK(blocking() == 0);
    // The first example has armed the queue again at its end, so the second one can wait.
    CHECK(polling() == 0);

    CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver));
    // Waits until all its events have been acknowledged.
    CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(senders_cq));
    CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
    puts("done");
    return 0;
}
