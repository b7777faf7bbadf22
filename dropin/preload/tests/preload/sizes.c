/* Requests and responses of one size, or a stream one way: `sizes server stream|[ROUNDS*]REQUEST,RESPONSE`, `sizes client PORT
 * ...`. A response is written in pieces of 32 KiB. With ROUNDS that many small requests and responses come first. */
#include "peer.h"

enum { ROUNDS = 200, PIECE = 32 << 10 };
static char bytes[1 << 20];

static void send_all(int fd, int len) {
    for (int at = 0, n; at < len; at += n)
        CHECK((n = send(fd, bytes, len - at < PIECE ? len - at : PIECE, 0)) > 0);
}
static void receive_all(int fd, int len) {
    for (int at = 0, n; at < len; at += n)
        CHECK((n = recv(fd, bytes, len - at, 0)) > 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0, request = 16 << 10, response = 0, small = 0;
    if (strcmp(argv[argc - 1], "stream") != 0 && sscanf(argv[argc - 1], "%d*%d,%d", &small, &request, &response) != 3)
        CHECK(sscanf(argv[argc - 1], "%d,%d", &request, &response) == 2 && (small = 0) == 0);
    alarm(100);
    open_port(is_server, argv[2]);
    int fd = connection(is_server);
    for (int round = 0; round < small; round++) {
        is_server ? receive_all(fd, 100) : send_all(fd, 100);
        is_server ? send_all(fd, 100) : receive_all(fd, 100);
    }
    for (int round = 0; round < ROUNDS; round++) {
        is_server ? receive_all(fd, request) : send_all(fd, request);
        is_server ? send_all(fd, response) : receive_all(fd, response);
    }
    /* The end comes when both have finished. */
    CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, bytes, 1, 0) == 0);
    return 0;
}
