// A program that uses libibverbs: a region is re-registered, each property separately and all together, and in ways
// that fail.
#include "pair.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define FULL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *context;
static struct ibv_cq *cq;
// The written bytes, registered in every domain.
static char source[8] = "written";
// Keys of the region.
static uint32_t rkey, lkey;

// Writes to memory of a domain from a queue pair of that domain. Returns the completion status.
static enum ibv_wc_status write_to(struct ibv_pd *pd, const void *addr, uint32_t rkey)
{
    struct ibv_qp *qp = make_qp(pd, cq, NULL), *other = make_qp(pd, cq, NULL);
    connect_to(qp, other->qp_num);
    connect_to(other, qp->qp_num);
    struct ibv_mr *mr = ibv_reg_mr(pd, source, sizeof source, 0);
    CHECK(mr);
    struct ibv_sge sge = {.addr = (uintptr_t)source, .length = sizeof source, .lkey = mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = (uintptr_t)addr, .rkey = rkey},
    }, *bad;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    struct ibv_wc wc;
    int polled;
    do
        polled = ibv_poll_cq(cq, 1, &wc);
    while (polled == 0);
    CHECK(polled == 1);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(other) && !ibv_dereg_mr(mr));
    return wc.status;
}

// Checks that the region of a domain can be written by its keys.
static void works(struct ibv_pd *pd, struct ibv_mr *mr)
{
    memset(mr->addr, 0, sizeof source);
    CHECK(mr->pd == pd && mr->rkey == rkey && mr->lkey == lkey);
    CHECK(write_to(pd, mr->addr, mr->rkey) == IBV_WC_SUCCESS);
    CHECK(!memcmp(mr->addr, source, sizeof source));
    CHECK(write_to(pd, (char *)mr->addr + mr->length, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
}

int main(void)
{
    context = open_first_device();
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_pd *pd = ibv_alloc_pd(context), *other_pd = ibv_alloc_pd(context);
    char *a = aligned_alloc(PAGE, 4 * PAGE), *b = aligned_alloc(PAGE, 8 * PAGE);
    CHECK(cq && pd && other_pd && a && b);
    struct ibv_mr *mr = ibv_reg_mr(pd, a, 4 * PAGE, FULL);
    CHECK(mr);
    rkey = mr->rkey;
    lkey = mr->lkey;
    works(pd, mr);

    // Access: less, then as before. The keys are preserved by every change.
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
    CHECK(mr->addr == a && mr->length == 4 * PAGE && mr->pd == pd && mr->context == context);
    CHECK(write_to(pd, a, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, FULL));
    works(pd, mr);

    // Memory.
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b, 8 * PAGE, 0));
    CHECK(mr->addr == b && mr->length == 8 * PAGE);
    works(pd, mr);
    CHECK(write_to(pd, a, mr->rkey) == IBV_WC_REM_ACCESS_ERR);

    // Domain.
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0));
    works(other_pd, mr);
    CHECK(write_to(pd, b, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dealloc_pd(other_pd) == EBUSY);

    // Everything together, to a part of the same memory.
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pd,
                        b + PAGE, PAGE, FULL));
    works(pd, mr);
    CHECK(!ibv_dealloc_pd(other_pd));

    // Invalid input: the region is unchanged.
    CHECK(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, PAGE, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, a, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, FULL) == IBV_REREG_MR_ERR_INPUT);
    works(pd, mr);

    // The device refuses: no request can access the region any more, and it is deregistered normally.
    char *gone = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED && !munmap(gone, PAGE));
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, PAGE, 0) == IBV_REREG_MR_ERR_CMD);
    CHECK(errno == EFAULT);
    CHECK(write_to(pd, b + PAGE, rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, FULL) == IBV_REREG_MR_ERR_CMD);
    CHECK(!ibv_dereg_mr(mr));
    mr = ibv_reg_mr(pd, a, 4 * PAGE, FULL);
    CHECK(mr && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
                    IBV_REREG_MR_ERR_CMD && errno == EINVAL);
    CHECK(!ibv_dereg_mr(mr));

    CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    free(a);
    free(b);
    puts("done");
    return 0;
}
