/* One end is killed while both send: the other receives the bytes sent before, then an end, and does not hang.
 * `death server [DIES]`, `death client PORT [DIES]`. */
#include "peer.h"

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0, dies = strcmp(argv[argc - 1], "dies") == 0;
    signal(SIGPIPE, SIG_IGN);
    alarm(300);
    open_port(is_server, argv[2]);
    int fd = meet(is_server);
    static char bytes[100000];
    uint64_t sent = 0, received = 0;
    if (dies) {
        /* Half of the time with bytes that the peer has not received, and the ring full. */
        usleep(1000 * (getpid() % 50));
        for (;;) {
            memset(bytes, 'd', sizeof bytes);
            if (send(fd, bytes, 1 + getpid() % 5000, MSG_DONTWAIT) < 0)
                kill(getpid(), SIGKILL);
        }
    }
    fprintf(stderr, "waits\n");
    /* It only sends until there is no room: it must hear of the death all the same. */
    ssize_t n;
    while ((n = send(fd, bytes, sizeof bytes, 0)) > 0)
        sent += n;
    printf("send ended with %s after more than nothing: %d\n", errno == EPIPE || errno == ECONNRESET ? "reset" : "?", sent > 0);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            CHECK(bytes[i] == 'd');
        received += n;
    }
    printf("received %d, then %s\n", received > 0, n == 0 ? "end or reset" : errno == ECONNRESET ? "end or reset" : strerrorname_np(errno));
    CHECK(n == 0 || errno == ECONNRESET);
    return 0;
}
