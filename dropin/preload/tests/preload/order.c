/* A ring that ends before the peer has read the bytes sent by TCP before it: bytes of TCP, of the ring and of TCP again, some
 * with one call, some with many; `order server x`, `order client PORT x`. Byte `at` of an answer is `at * 7`. */
#include "peer.h"

#define ANSWER_BYTES 60000

static char bytes[ANSWER_BYTES];

/* A file of an answer's bytes. */
static int answer_file(void) {
    for (int at = 0; at < ANSWER_BYTES; at++)
        bytes[at] = at * 7;
    char name[] = "/tmp/farcall-order-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && write(file, bytes, ANSWER_BYTES) == ANSWER_BYTES);
    return file;
}

/* The first bytes by calls, the others by the kernel. */
static void answer(int fd, int file, int round) {
    off_t at = 0;
    int by_calls = 1 + round * 131 % 3000;
    for (int calls = 1 + round % 3; calls > 0; calls--) {
        CHECK(send(fd, bytes + at, by_calls, 0) == by_calls);
        at += by_calls;
        if (round % 5 == 0)
            usleep(round * 17 % 400);
    }
    while (at < ANSWER_BYTES)
        CHECK(sendfile(fd, file, &at, ANSWER_BYTES - at) > 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0;
    alarm(300);
    open_port(is_server, argv[2]);
    int file = is_server ? answer_file() : -1;
    for (int round = 0; round < 400; round++) {
        int fd = connection(is_server);
        char byte = 'x';
        if (is_server) {
            CHECK(recv(fd, &byte, 1, 0) == 1);
            /* Before: bytes by TCP, sometimes. The peer is paired when it has polled for them. */
            if (round % 2)
                CHECK(send(fd, "a", 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1);
            else
                usleep(300);
            if (round % 4 > 1)
                CHECK(send(fd, "b", 1, 0) == 1);
            usleep(round * 13 % 300);
            answer(fd, file, round);
        } else {
            CHECK(send(fd, &byte, 1, 0) == 1);
            if (round % 2)
                CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'a' && send(fd, &byte, 1, 0) == 1);
            if (round % 3 == 0)
                usleep(round * 29 % 1000);
            if (round % 4 > 1)
                CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'b');
            for (int at = 0; at < ANSWER_BYTES;) {
                static char in[ANSWER_BYTES];
                int len = 1 + (round * 997 + at) % 9000;
                ssize_t peeked = recv(fd, in, len, MSG_PEEK);
                for (int i = 0; i < peeked; i++)
                    CHECK(in[i] == (char)((at + i) * 7));
                ssize_t n = recv(fd, in, len, round % 7 == 0 && at + len <= ANSWER_BYTES ? MSG_WAITALL : 0);
                CHECK(n > 0);
                for (int i = 0; i < n; i++)
                    CHECK(in[i] == (char)((at + i) * 7));
                at += n;
            }
        }
        CHECK(close(fd) == 0);
    }
    return 0;
}
