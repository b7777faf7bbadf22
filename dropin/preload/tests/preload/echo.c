/* A client that sends all before it receives, in small pieces, to an echo that blocks: `echo server x`, `echo client PORT
 * BYTES`. */
#include "peer.h"

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0;
    static char bytes[4096];
    long all = atol(argv[argc - 1]), received = 0;
    alarm(100);
    open_port(is_server, argv[2]);
    int fd = meet(is_server);
    if (is_server) {
        for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
            CHECK(send(fd, bytes, n, 0) == n);
        return 0;
    }
    for (long sent = 0; sent < all;) {
        long len = all - sent < 1000 ? all - sent : 1000;
        for (long i = 0; i < len; i++)
            bytes[i] = (char)((sent + i) * 31 >> 3);
        CHECK(send(fd, bytes, len, 0) == len);
        sent += len;
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0; received += n)
        for (ssize_t i = 0; i < n; i++)
            CHECK(bytes[i] == (char)((received + i) * 31 >> 3));
    printf("%ld bytes\n", received);
    return 0;
}
