/* A connection that its process leaves open after five bytes to one end and three to the other, and a refused one. */
#include "peer.h"

int main(void) {
    struct sockaddr_in closed = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof closed;
    char got[8];
    alarm(500);
    open_port(1, NULL);
    int to = connection(0), from = connection(1);
    CHECK(write(to, "hello", 5) == 5 && recv(from, got, 5, MSG_WAITALL) == 5);
    CHECK(write(from, "yes", 3) == 3 && recv(to, got, 3, MSG_WAITALL) == 3);
    /* A port that is bound, and not listened at, refuses. The own address is known also afterwards if it was bound. */
    int bound = socket(AF_INET, SOCK_STREAM, 0), refused = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(bind(refused, (void *)&closed, sizeof closed) == 0);
    CHECK(bind(bound, (void *)&closed, sizeof closed) == 0 && getsockname(bound, (void *)&closed, &len) == 0);
    int done = connect(refused, (void *)&closed, sizeof closed);
    struct pollfd entry = {.fd = refused, .events = POLLOUT};
    CHECK(done == -1 && errno == EINPROGRESS && poll(&entry, 1, -1) == 1);
    CHECK(close(refused) == 0);
    return 0;
}
