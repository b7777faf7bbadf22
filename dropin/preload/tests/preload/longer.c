/* A message that is longer than a ring: `longer server x` receives it, `longer client PORT x` sends it by one call. */
#include "peer.h"

enum { LEN = 200000 };
static unsigned char bytes[LEN];

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0;
    char byte = 'x';
    alarm(100);
    open_port(is_server, argv[2]);
    int fd = meet(is_server);
    if (is_server) {
        CHECK(recv(fd, bytes, LEN, MSG_WAITALL) == LEN);
        for (int i = 0; i < LEN; i++)
            CHECK(bytes[i] == (unsigned char)(i * 31 >> 3));
        CHECK(send(fd, &byte, 1, 0) == 1);
    } else {
        for (int i = 0; i < LEN; i++)
            bytes[i] = (unsigned char)(i * 31 >> 3);
        CHECK(send(fd, bytes, LEN, 0) == LEN);
        CHECK(recv(fd, &byte, 1, 0) == 1);
    }
    printf("done\n");
    return 0;
}
