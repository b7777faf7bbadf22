/* Connections that move, all of them open at once: `many server COUNT`, `many client PORT COUNT`. Prints how many descriptors
 * this process has then. */
#include "peer.h"
#include <dirent.h>
#include <sys/resource.h>

enum { CONNECTIONS_MAX = 4096 };
static int fds[CONNECTIONS_MAX];

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder);
    CHECK(closedir(folder) == 0);
    return count;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0, connections = atoi(argv[argc - 1]);
    struct rlimit limit;
    char byte = 'x';
    CHECK(connections <= CONNECTIONS_MAX && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    alarm(500);
    open_port(is_server, argv[2]);
    for (int at = 0; at < connections; at++)
        fds[at] = meet(is_server);
    for (int round = 0; round < 2; round++) {
        for (int at = 0; at < connections; at++) {
            if (!is_server)
                CHECK(send(fds[at], &byte, 1, 0) == 1);
            CHECK(recv(fds[at], &byte, 1, 0) == 1);
            if (is_server)
                CHECK(send(fds[at], &byte, 1, 0) == 1);
        }
        if (round == 0)
            printf("%d\n", descriptors());
    }
    return 0;
}
