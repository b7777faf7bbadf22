// Driver interfaces can be loaded together with the library, find none of their devices, and report that.
#include "pair.h"
#include <errno.h>
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>

#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECK(!(call) && errno == EOPNOTSUPP);                                                                         \
    } while (0)

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && !mlx5dv_is_supported(list[0]));
    struct mlx5dv_context_attr opening = {0};
    REFUSED(mlx5dv_open_device(list[0], &opening));
    ibv_free_device_list(list);

    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd && cq);
    struct mlx5dv_context mlx5 = {0};
    struct mlx5dv_clock_info clock;
    struct efadv_device_attr efa;
    CHECK(mlx5dv_query_device(context, &mlx5) == EOPNOTSUPP);
    CHECK(mlx5dv_get_clock_info(context, &clock) == EOPNOTSUPP);
    CHECK(efadv_query_device(context, &efa, sizeof efa) == EOPNOTSUPP);

    struct ibv_qp_init_attr_ex wanted = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {1, 1, 1, 1},
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pd,
    };
    // Dynamically connected transport.
    struct mlx5dv_qp_init_attr dynamic = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI}};
    struct efadv_qp_init_attr reliable = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
    REFUSED(ibv_create_qp_ex(context, &wanted));
    REFUSED(mlx5dv_create_qp(context, &wanted, &dynamic));
    REFUSED(efadv_create_qp_ex(context, &wanted, &reliable, sizeof reliable));
    struct ibv_cq_init_attr_ex cq_wanted = {.cqe = 4};
    struct mlx5dv_cq_init_attr cq_mlx5 = {0};
    REFUSED(mlx5dv_create_cq(context, &cq_wanted, &cq_mlx5));
    REFUSED(mlx5dv_devx_umem_reg(context, &wanted, 64, 0));
    struct mlx5dv_cq inside;
    struct mlx5dv_obj objects = {.cq = {.in = cq, .out = &inside}};
    CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_CQ) == EOPNOTSUPP);

    CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    puts("done");
    return 0;
}
