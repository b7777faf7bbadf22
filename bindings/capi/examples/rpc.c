/* A server of remote calls and a client of it, in one program: method 1 answers with what it was sent. */
#include <farcall.h>
#include <stdio.h>
#include <string.h>

static void handle(void *context, const farcall_call *call, farcall_reply *reply) {
    (void)context;
    if (call->method == 1)
        farcall_reply_append(reply, call->request, call->request_len_bytes);
    else
        farcall_reply_refuse(reply, 7, "only method 1 here");
}

int main(void) {
    farcall_server *server;
    farcall_rpc *rpc = NULL;
    char address[64];
    const void *reply;
    size_t len_bytes;
    int code;

    code = farcall_server_start("127.0.0.1:0", NULL, handle, NULL, &server);
    if (code == FARCALL_OK)
        code = farcall_server_address(server, address, sizeof address);
    if (code == FARCALL_OK)
        code = farcall_rpc_connect(address, NULL, &rpc);
    if (code == FARCALL_OK)
        code = farcall_rpc_call(rpc, 1, "hello", 5, 1000000, &reply, &len_bytes);
    if (code == FARCALL_OK)
        printf("%.*s\n", (int)len_bytes, (const char *)reply);
    else
        fprintf(stderr, "%s\n", farcall_error_message());
    farcall_rpc_close(rpc);
    farcall_server_stop(server);
    return code;
}
