/* A client of the store: kv HOST:PORT of farcall kv serve --rpc. */
#include <farcall.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what, int code) {
    fprintf(stderr, "%s: %s\n", what, farcall_error_message());
    return code;
}

int main(int argc, char **argv) {
    const char *key = "greeting", *text = "hello";
    farcall_kv *kv;
    farcall_item item;
    farcall_write write;
    uint64_t version;
    int code;

    if (argc != 2)
        return 64;
    code = farcall_kv_connect(argv[1], NULL, &kv);
    if (code != FARCALL_OK)
        return failed("connect", code);

    memset(&write, 0, sizeof write);
    write.value = text;
    write.value_len_bytes = strlen(text);
    write.time_to_live_ms = 60000;
    code = farcall_kv_put(kv, key, strlen(key), &write, &version);
    if (code == FARCALL_OK)
        code = farcall_kv_get(kv, key, strlen(key), &item);
    if (code == FARCALL_OK)
        printf("%.*s\n", (int)item.value_len_bytes, (const char *)item.value);
    else
        failed("put and get", code);
    farcall_kv_close(kv);
    return code;
}
