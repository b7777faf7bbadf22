// An ordinary program that uses libibverbs: one process, two connected queue pairs. A batch of the extended queue pair
// is posted completely or not at all; a completion queue holds all possible completions; registered memory is private
// to the process after a fork.
#include "pair.h"
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define MANY 40

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp_ex *make(void)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = MANY, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    initialize(qp);
    return ibv_qp_to_qp_ex(qp);
}

static int completions(void)
{
    struct ibv_wc wc[8];
    int all = 0, some;
    while ((some = ibv_poll_cq(cq, 8, wc)) > 0) {
        for (int i = 0; i < some; i++)
            CHECK(wc[i].status == IBV_WC_SUCCESS);
        all += some;
    }
    CHECK(some == 0);
    return all;
}

// A batch of WRITEs of one byte each, at consecutive addresses.
static void write_bytes(struct ibv_qp_ex *qp, struct ibv_mr *mr, int count)
{
    char *to = (char *)mr->addr + PAGE;
    for (int i = 0; i < count; i++) {
        qp->wr_id = i;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)(to + i));
        ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)mr->addr + i, 1);
    }
}

int main(void)
{
    context = open_first_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    CHECK(pd && cq);
    char *memory;
    CHECK(!posix_memalign((void **)&memory, PAGE, 4 * PAGE));
    memset(memory, 'a', PAGE);
    memset(memory + PAGE, 0, 3 * PAGE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4 * PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr);
    struct ibv_qp_ex *qp = make(), *other = make();
    connect_to(&qp->qp_base, other->qp_base.qp_num);
    connect_to(&other->qp_base, qp->qp_base.qp_num);

    // A refused request, for each reason, after valid ones. Sizes may have been rounded up.
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(&qp->qp_base, &attr, IBV_QP_CAP, &init));
    char large[65] = "bbbbbbbb";
    struct ibv_sge three[3] = {{0}};
    for (int reason = 0; reason < 3; reason++) {
        ibv_wr_start(qp);
        write_bytes(qp, mr, 3);
        if (reason == 0) {
            ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + PAGE);
            ibv_wr_set_sge_list(qp, 3, three);
        } else if (reason == 1) {
            ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + PAGE);
            struct ibv_data_buf buffers[32];
            for (int i = 0; i < 32; i++)
                buffers[i] = (struct ibv_data_buf){.addr = large, .length = sizeof large};
            ibv_wr_set_inline_data_list(qp, 32, buffers);
        } else {
            // More requests than the queue has slots.
            write_bytes(qp, mr, init.cap.max_send_wr);
        }
        CHECK(ibv_wr_complete(qp));
        CHECK(completions() == 0);
        CHECK(memory[PAGE] == 0);
    }
    ibv_wr_start(qp);
    CHECK(!ibv_wr_complete(qp));

    // Other calls for the same pair in between; requests that they post come first.
    ibv_wr_start(qp);
    write_bytes(qp, mr, 3);
    CHECK(!ibv_query_qp(&qp->qp_base, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .min_rnr_timer = 3};
    CHECK(!ibv_modify_qp(&qp->qp_base, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER));
    struct ibv_recv_wr receive = {.wr_id = 70}, *bad_receive;
    CHECK(!ibv_post_recv(&qp->qp_base, &receive, &bad_receive));
    struct ibv_sge byte = {.addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey};
    struct ibv_send_wr write = {
        .wr_id = 71,
        .sg_list = &byte,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = (uintptr_t)memory + 2 * PAGE, .rkey = mr->rkey},
    }, *bad;
    CHECK(!ibv_post_send(&qp->qp_base, &write, &bad));
    struct ibv_wc wc;
    int polled;
    do
        polled = ibv_poll_cq(cq, 1, &wc);
    while (polled == 0);
    CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 71);
    CHECK(memory[PAGE] == 0 && memory[2 * PAGE] == 'a');
    CHECK(!ibv_wr_complete(qp));
    CHECK(completions() == 3 && memory[PAGE + 2] == 'a' && memory[PAGE + 3] == 0);

    // A batch within a batch is an error of both, and none of their requests is posted. The next batch is not
    // affected.
    ibv_wr_start(qp);
    write_bytes(qp, mr, 5);
    ibv_wr_start(qp);
    write_bytes(qp, mr, 6);
    CHECK(ibv_wr_complete(qp) == EINVAL && ibv_wr_complete(qp) == EINVAL);
    CHECK(completions() == 0 && memory[PAGE + 3] == 0);
    ibv_wr_start(qp);
    write_bytes(qp, mr, 7);
    ibv_wr_abort(qp);
    memset(memory + PAGE, 0, 2 * PAGE);

    // All of them, at a completion queue that was created for one entry.
    ibv_wr_start(qp);
    write_bytes(qp, mr, MANY);
    CHECK(!ibv_wr_complete(qp));
    CHECK(completions() == MANY);
    CHECK(!memcmp(memory, memory + PAGE, MANY) && memory[PAGE + MANY] == 0);
    CHECK(ibv_resize_cq(cq, 0));
    CHECK(!ibv_resize_cq(cq, 3) && cq->cqe >= 3);
    ibv_wr_start(qp);
    write_bytes(qp, mr, MANY);
    CHECK(!ibv_wr_complete(qp));
    CHECK(completions() == MANY);

    // Parent and child have separate memory, although peers can map the parent's.
    char line[512];
    int is_moved = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        is_moved |= strstr(line, "memfd:farcall-registered") != NULL;
    fclose(maps);
    CHECK(is_moved == !getenv("UNMOVED"));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(memory[PAGE] == 'a');
        memset(memory, 'c', 4 * PAGE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(memory[0] == 'a' && memory[2 * PAGE] == 0);

    CHECK(!ibv_destroy_qp(&qp->qp_base) && !ibv_destroy_qp(&other->qp_base));
    CHECK(!ibv_dereg_mr(mr) && memory[PAGE] == 'a');
    CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    free(memory);
    puts("done");
    return 0;
}
