/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking client against a real server of net/ on another thread of this process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/heap.h"
#include "client/client.h"
#include "client/message.h"
#include "hps/v1/admin.pb-c.h"
#include "net/acceptor.h"
#include "net/grpc.h"
#include "net/sock.h"
#include "tests/lib/tmpdir.h"

#define SECOND_US (UINT64_C(1000) * 1000)

/* ---- server ---------------------------------------------------------------------------------- */

struct server {
    struct hps_loop *loop;
    struct hps_grpc_server *grpc;
    struct hps_grpc_loop *grpc_loop;
    struct hps_acceptor *acceptor;
    pthread_t thread;
    char address[HPS_TMPDIR_PATH_MAX + 8];
    struct hps_tmpdir dir;
    atomic_bool serving;
};

static struct server server;

static void echo(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    hps_grpc_call_send_copy(call, data, size);
    hps_grpc_call_finish(call, 0, NULL);
}

static void refuse(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    hps_grpc_call_finish(call, 5, "model \"x\" is not known, 100% sure");
}

static void never(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)call;
    (void)data;
    (void)size;
}

static void nothing(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    hps_grpc_call_finish(call, 0, NULL);
}

static void three(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    for (int i = 0; i < 3; i++) {
        hps_grpc_call_send_copy(call, data, size);
    }
    hps_grpc_call_finish(call, 0, NULL);
}

/* One message, then silence until the client has had enough. */
static void one_then_silence(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    hps_grpc_call_send_copy(call, data, size);
}

static void health(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    const uint8_t reply[] = {0x08, atomic_load(&server.serving) ? 1 : 2};

    if (size > 0) {
        assert_int_equal(data[0], 0x0a);
        hps_grpc_call_finish(call, 5, "no such service");
        return;
    }
    hps_grpc_call_send_copy(call, reply, sizeof(reply));
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method methods[] = {
    {.path = "/test.Test/Echo", .on_message = echo},
    {.path = "/test.Test/Refuse", .on_message = refuse},
    {.path = "/test.Test/Never", .on_message = never},
    {.path = "/test.Test/Nothing", .on_message = nothing},
    {.path = "/test.Test/Three", .on_message = three},
    {.path = "/test.Test/OneThenSilence", .on_message = one_then_silence},
};
static const struct hps_grpc_method health_methods[] = {
    {.path = "/grpc.health.v1.Health/Check", .on_message = health},
};
static const struct hps_grpc_service service = {"test.Test", methods,
                                                sizeof(methods) / sizeof(methods[0]), NULL};
static const struct hps_grpc_service health_service = {"grpc.health.v1.Health", health_methods, 1,
                                                       NULL};

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    (void)ctx;
    hps_grpc_loop_adopt(server.grpc_loop, conn, cookie, false);
}

static void *serve(void *ctx)
{
    (void)ctx;
    hps_loop_run(server.loop);
    hps_acceptor_free(server.acceptor);
    hps_grpc_loop_free(server.grpc_loop);
    hps_loop_free(server.loop);
    return NULL;
}

static int start_server(void **state)
{
    const struct hps_grpc_limits limits = {
        .compression = true,
        .request_bytes_max = 1 << 20,
        .connection_reply_bytes_max = 64 << 20,
        .streams_max = 64,
        .handshake_timeout_us = 10 * SECOND_US,
        .stall_timeout_us = 30 * SECOND_US,
    };
    struct hps_error err = {0};
    struct hps_addr addr;
    int fd;

    (void)state;
    atomic_store(&server.serving, true);
    hps_tmpdir_open(&server.dir);
    (void)snprintf(server.address, sizeof(server.address), "unix:%s",
                   hps_tmpdir_join(&server.dir, "s"));
    assert_int_equal(hps_addr_parse(server.address, &addr, &err), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &fd, &err), HPS_OK);
    assert_int_equal(hps_loop_new(&server.loop, &err), HPS_OK);
    server.grpc = hps_grpc_server_new(&limits, NULL);
    assert_non_null(server.grpc);
    assert_int_equal(hps_grpc_server_add(server.grpc, &service, 1), HPS_OK);
    assert_int_equal(hps_grpc_server_add(server.grpc, &health_service, 1), HPS_OK);
    assert_int_equal(hps_grpc_loop_new(server.grpc, server.loop, &server.grpc_loop), HPS_OK);
    const struct hps_acceptor_options options = {.on_accept = on_accept};
    assert_int_equal(hps_acceptor_new(server.loop, &options, &server.acceptor, &err), HPS_OK);
    assert_int_equal(hps_acceptor_add(server.acceptor, fd, NULL, 1, true, &err), HPS_OK);
    return pthread_create(&server.thread, NULL, serve, NULL);
}

static int stop_server(void **state)
{
    (void)state;
    hps_loop_stop(server.loop);
    (void)pthread_join(server.thread, NULL);
    hps_grpc_server_free(server.grpc);
    hps_tmpdir_close(&server.dir);
    return 0;
}

static struct hps_client *open_client(void)
{
    const struct hps_client_options options = {.address = server.address};
    struct hps_client *client = NULL;
    struct hps_error err = {0};

    assert_int_equal(hps_client_open(&options, &client, &err), HPS_OK);
    return client;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_call_when_answered_then_reply_is_appended(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    hps_buf_init(&reply, 1 << 20);
    assert_int_equal(hps_client_call(client, "/test.Test/Echo", "ab", 2, 0, &reply, &err), HPS_OK);
    assert_int_equal(
        hps_client_call(client, "/test.Test/Echo", "cd", 2, SECOND_US * 60, &reply, &err), HPS_OK);
    assert_int_equal(reply.size, 4);
    assert_memory_equal(reply.data, "abcd", 4);
    hps_buf_fini(&reply);
    hps_client_close(client);
}

static void test_call_when_large_then_every_byte_arrives(void **state)
{
    enum { SIZE = 700 * 1000 };
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;
    uint8_t *request = hps_alloc(SIZE);

    (void)state;
    assert_non_null(request);
    for (unsigned i = 0; i < SIZE; i++) {
        request[i] = (uint8_t)(i * 31 + i / 251);
    }
    hps_buf_init(&reply, SIZE);
    assert_int_equal(hps_client_call(client, "/test.Test/Echo", request, SIZE, 0, &reply, &err),
                     HPS_OK);
    assert_int_equal(reply.size, SIZE);
    assert_memory_equal(reply.data, request, SIZE);
    hps_buf_fini(&reply);
    hps_free(request);
    hps_client_close(client);
}

static void test_call_when_refused_then_status_and_text(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    hps_buf_init(&reply, 64);
    assert_int_equal(hps_client_call(client, "/test.Test/Refuse", "", 0, 0, &reply, &err),
                     HPS_NOT_FOUND);
    assert_int_equal(err.status, HPS_NOT_FOUND);
    assert_string_equal(err.text, "model \"x\" is not known, 100% sure");
    assert_int_equal(hps_client_call(client, "/test.Test/Absent", "", 0, 0, &reply, &err),
                     HPS_UNIMPLEMENTED);
    assert_int_equal(reply.size, 0);
    hps_client_close(client);
}

static void test_call_when_not_answered_then_deadline_and_client_goes_on(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    hps_buf_init(&reply, 64);
    assert_int_equal(hps_client_call(client, "/test.Test/Never", "", 0, 20 * 1000, &reply, &err),
                     HPS_DEADLINE);
    assert_int_equal(hps_client_call(client, "/test.Test/Echo", "x", 1, 0, &reply, &err), HPS_OK);
    hps_buf_fini(&reply);
    hps_client_close(client);
}

static void test_call_when_reply_exceeds_buffer_then_exhausted_and_buffer_kept(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    hps_buf_init(&reply, 4);
    assert_int_equal(hps_client_call(client, "/test.Test/Echo", "ab", 2, 0, &reply, &err), HPS_OK);
    assert_int_equal(hps_client_call(client, "/test.Test/Echo", "cdefg", 5, 0, &reply, &err),
                     HPS_EXHAUSTED);
    assert_int_equal(reply.size, 2);
    assert_memory_equal(reply.data, "ab", 2);
    hps_buf_fini(&reply);
    hps_client_close(client);
}

static void test_call_when_no_or_many_replies_then_error(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    hps_buf_init(&reply, 64);
    assert_int_equal(hps_client_call(client, "/test.Test/Nothing", "", 0, 0, &reply, &err),
                     HPS_INTERNAL);
    assert_int_equal(hps_client_call(client, "/test.Test/Three", "a", 1, 0, &reply, &err),
                     HPS_INTERNAL);
    assert_int_equal(reply.size, 0);
    hps_buf_fini(&reply);
    hps_client_close(client);
}

struct seen {
    unsigned n;
    unsigned n_max;
};

static hps_status on_message(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    struct seen *seen = ctx;

    assert_int_equal(size, 3);
    assert_memory_equal(data, "abc", 3);
    seen->n++;
    if (seen->n == seen->n_max) {
        return hps_error_set(err, HPS_ABORTED, "enough");
    }
    return HPS_OK;
}

static bool stopped;

static bool is_stopped(void)
{
    return stopped;
}

static hps_status on_message_stop(void *ctx, const uint8_t *data, size_t size,
                                  struct hps_error *err)
{
    struct seen *seen = ctx;

    (void)data;
    (void)size;
    (void)err;
    seen->n++;
    stopped = true;
    return HPS_OK;
}

static void test_stream_when_served_then_messages_in_turn(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct seen seen = {0, 99};

    (void)state;
    assert_int_equal(
        hps_client_stream(client, "/test.Test/Three", "abc", 3, 0, on_message, &seen, NULL, &err),
        HPS_OK);
    assert_int_equal(seen.n, 3);
    hps_client_close(client);
}

static void test_stream_when_callback_fails_then_that_is_the_result(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct seen seen = {0, 1};

    (void)state;
    assert_int_equal(hps_client_stream(client, "/test.Test/OneThenSilence", "abc", 3, 0, on_message,
                                       &seen, NULL, &err),
                     HPS_ABORTED);
    assert_string_equal(err.text, "enough");
    hps_client_close(client);
}

static void test_stream_when_stopped_then_cancelled(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    struct seen seen = {0, 99};

    (void)state;
    assert_int_equal(hps_client_stream(client, "/test.Test/OneThenSilence", "abc", 3, 0,
                                       on_message_stop, &seen, is_stopped, &err),
                     HPS_CANCELLED);
    assert_int_equal(seen.n, 1);
    hps_client_close(client);
}

static void test_health_when_asked_then_serving_state(void **state)
{
    struct hps_client *client = open_client();
    struct hps_error err = {0};
    bool serving = false;

    (void)state;
    assert_int_equal(hps_client_health(client, "", 0, &serving, &err), HPS_OK);
    assert_true(serving);
    atomic_store(&server.serving, false);
    assert_int_equal(hps_client_health(client, NULL, 0, &serving, &err), HPS_OK);
    assert_false(serving);
    atomic_store(&server.serving, true);
    assert_int_equal(hps_client_health(client, "absent", 0, &serving, &err), HPS_NOT_FOUND);
    hps_client_close(client);
}

static void test_message_when_called_then_decoded_or_data_loss(void **state)
{
    struct hps_client *client = open_client();
    Hps__V1__PingResponse request = HPS__V1__PING_RESPONSE__INIT;
    Hps__V1__LoadPlan wrong = HPS__V1__LOAD_PLAN__INIT;
    ProtobufCMessage *reply = NULL;
    struct hps_error err = {0};

    (void)state;
    request.version = (char *)(uintptr_t) "1.2.3";
    assert_int_equal(hps_client_call_message(client, "/test.Test/Echo", &request.base,
                                             &hps__v1__ping_response__descriptor, 0, &reply, &err),
                     HPS_OK);
    assert_string_equal(((Hps__V1__PingResponse *)reply)->version, "1.2.3");
    hps_message_free(reply);
    reply = NULL;
    wrong.disk_bytes_needed = 7; /* a number where a text must be */
    assert_int_equal(hps_client_call_message(client, "/test.Test/Echo", &wrong.base,
                                             &hps__v1__ping_response__descriptor, 0, &reply, &err),
                     HPS_DATA_LOSS);
    assert_null(reply);
    hps_client_close(client);
}

static void test_open_when_nobody_is_there_then_unavailable_names_address(void **state)
{
    const struct hps_client_options options = {.address = "unix:/nonexistent/hps/socket"};
    struct hps_client *client = NULL;
    struct hps_error err = {0};

    (void)state;
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_UNAVAILABLE);
    assert_null(client);
    assert_string_equal(err.text, "cannot reach unix:/nonexistent/hps/socket: "
                                  "No such file or directory");
}

static void test_open_when_files_are_bad_then_error_names_them(void **state)
{
    struct hps_client_options options = {.address = server.address,
                                         .token_file = "/nonexistent/token"};
    struct hps_client *client = NULL;
    struct hps_error err = {0};

    (void)state;
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/token"));
    hps_tmpdir_write(&server.dir, "token", "two words\n", 10);
    options.token_file = hps_tmpdir_join(&server.dir, "token");
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_INVALID);
    options.token_file = NULL;
    options.tls_key = "/nonexistent/key";
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_INVALID);
    assert_null(client);
}

static void test_open_when_token_would_leave_host_in_clear_text_then_only_with_plaintext(
    void **state)
{
    struct hps_client_options options = {.address = "no-such-host.invalid:1"};
    struct hps_client *client = NULL;
    struct hps_error err = {0};

    (void)state;
    hps_tmpdir_write(&server.dir, "token", "secret\n", 7);
    options.token_file = hps_tmpdir_join(&server.dir, "token");
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "without TLS"));
    assert_non_null(strstr(err.text, "no-such-host.invalid:1"));
    options.plaintext = true;
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_UNAVAILABLE);
    options.plaintext = false;
    options.address = server.address;
    assert_int_equal(hps_client_open(&options, &client, &err), HPS_OK);
    hps_client_close(client);
}

static void test_open_when_loop_is_shared_then_both_work(void **state)
{
    struct hps_loop *loop = NULL;
    struct hps_client *clients[2] = {NULL, NULL};
    struct hps_error err = {0};
    struct hps_buf reply;

    (void)state;
    assert_int_equal(hps_loop_new(&loop, &err), HPS_OK);
    hps_buf_init(&reply, 64);
    for (int i = 0; i < 2; i++) {
        const struct hps_client_options options = {.address = server.address, .loop = loop};
        assert_int_equal(hps_client_open(&options, &clients[i], &err), HPS_OK);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hps_client_call(clients[i], "/test.Test/Echo", "x", 1, 0, &reply, &err),
                         HPS_OK);
        assert_ptr_equal(hps_client_loop(clients[i]), loop);
        hps_client_close(clients[i]);
    }
    assert_int_equal(reply.size, 2);
    hps_buf_fini(&reply);
    hps_loop_free(loop);
}

static void test_status_when_code_is_any_then_inverse_of_grpc_code(void **state)
{
    (void)state;
    for (int code = 0; code <= 16; code++) {
        assert_int_equal(hps_status_grpc_code(hps_status_of_grpc(code)), code);
    }
    assert_int_equal(hps_status_of_grpc(17), HPS_UNKNOWN);
    assert_int_equal(hps_status_of_grpc(-1), HPS_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_call_when_answered_then_reply_is_appended),
        cmocka_unit_test(test_call_when_large_then_every_byte_arrives),
        cmocka_unit_test(test_call_when_refused_then_status_and_text),
        cmocka_unit_test(test_call_when_not_answered_then_deadline_and_client_goes_on),
        cmocka_unit_test(test_call_when_reply_exceeds_buffer_then_exhausted_and_buffer_kept),
        cmocka_unit_test(test_call_when_no_or_many_replies_then_error),
        cmocka_unit_test(test_stream_when_served_then_messages_in_turn),
        cmocka_unit_test(test_stream_when_callback_fails_then_that_is_the_result),
        cmocka_unit_test(test_stream_when_stopped_then_cancelled),
        cmocka_unit_test(test_health_when_asked_then_serving_state),
        cmocka_unit_test(test_message_when_called_then_decoded_or_data_loss),
        cmocka_unit_test(test_open_when_nobody_is_there_then_unavailable_names_address),
        cmocka_unit_test(test_open_when_files_are_bad_then_error_names_them),
        cmocka_unit_test(
            test_open_when_token_would_leave_host_in_clear_text_then_only_with_plaintext),
        cmocka_unit_test(test_open_when_loop_is_shared_then_both_work),
        cmocka_unit_test(test_status_when_code_is_any_then_inverse_of_grpc_code),
    };

    return cmocka_run_group_tests(tests, start_server, stop_server);
}
