/* A client of a stream: stream HOST:PORT sends a line, ends what it writes, and prints what comes back. */
#include <farcall.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *line = "hello\n";
    farcall_stream *stream;
    char bytes[256];
    size_t len_bytes;
    int code;

    if (argc != 2)
        return 64;
    code = farcall_stream_connect(argv[1], NULL, &stream);
    if (code == FARCALL_OK)
        code = farcall_stream_write(stream, line, strlen(line), &len_bytes);
    if (code == FARCALL_OK)
        code = farcall_stream_shutdown(stream);
    while (code == FARCALL_OK) {
        code = farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes);
        if (code == FARCALL_OK && len_bytes == 0)
            break;
        if (code == FARCALL_OK)
            printf("%.*s", (int)len_bytes, bytes);
    }
    if (code != FARCALL_OK)
        fprintf(stderr, "%s\n", farcall_error_message());
    farcall_stream_close(stream, 1000000);
    return code;
}
