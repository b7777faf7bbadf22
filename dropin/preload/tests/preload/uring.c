/* Echo by liburing: `uring server`, `uring client PORT`. */
#include "peer.h"
#include <liburing.h>

static int run(struct io_uring *ring) {
    struct io_uring_cqe *cqe;
    CHECK(io_uring_submit(ring) == 1 && io_uring_wait_cqe(ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int is_server = !strcmp(argv[1], "server");
    struct io_uring ring;
    char bytes[64];
    alarm(500);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    if (is_server && io_uring_queue_init(8, &ring, 0) != 0) {
        printf("no io_uring\n");
        return 0;
    }
    int fd = connection(is_server);
    for (int round = 0; round < 200; round++) {
        if (is_server) {
            io_uring_prep_recv(io_uring_get_sqe(&ring), fd, bytes, sizeof bytes, 0);
            int len = run(&ring);
            CHECK(len == 8);
            /* By the C library for once. */
            if (round % 3 == 0) {
                CHECK(write(fd, bytes, len) == len);
                continue;
            }
            io_uring_prep_send(io_uring_get_sqe(&ring), fd, bytes, len, 0);
            CHECK(run(&ring) == 8);
        } else {
            if (round == 3)
                usleep(60000);
            CHECK(write(fd, "12345678", 8) == 8 && recv(fd, bytes, 8, MSG_WAITALL) == 8);
        }
    }
    printf("done\n");
    return 0;
}
