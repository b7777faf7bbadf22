// Passes the rule of `man ibv_create_flow` to a device without flow steering, and follows `man ibv_read_counters` as
// far as possible. That page's own example is not valid C: a macro of several lines without continuation, an
// undeclared variable, a constant by its former name.
#include "pair.h"
#include <errno.h>

#include "ibv_create_flow-1.inc"

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_qp_init_attr raw = {
        .send_cq = cq, .recv_cq = cq, .cap = {.max_send_wr = 1, .max_send_sge = 1}, .qp_type = IBV_QPT_RAW_PACKET};
    errno = 0;
    CHECK(!ibv_create_qp(pd, &raw) && errno);
    struct ibv_qp *qp = make_qp(pd, cq, NULL);
    // The rule is packed; it begins with its attributes.
    void *rule = &flow_attr;
    errno = 0;
    CHECK(!ibv_create_flow(qp, rule) && errno == EOPNOTSUPP);
    struct ibv_counters_init_attr init = {0};
    errno = 0;
    CHECK(!ibv_create_counters(context, &init) && errno == EOPNOTSUPP);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    puts("done");
    return 0;
}
