/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of keys, the slot map, redirections.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backends/redis/client/client.h"
#include "backends/redis/client/slots.h"

static uint16_t slot(const char *key)
{
    return hps_redis_slot(key, strlen(key));
}

/* The first value is the check value in the specification. The rest are replies of redis-server
 * 7.0 to CLUSTER KEYSLOT. */
static void test_slot_when_a_key_has_a_tag_then_the_tag_decides(void **state)
{
    (void)state;
    assert_int_equal(slot("123456789"), 0x31C3 % 16384);
    assert_int_equal(slot("foo"), 12182);
    assert_int_equal(slot("user1000"), slot("{user1000}.following"));
    assert_int_equal(slot("foo{}{bar}"), 8363); /* an empty tag is ignored */
    assert_int_equal(slot("foo{{bar}}zap"), slot("{bar"));
    assert_int_equal(slot("foo{bar}{zap}"), slot("bar"));
    assert_int_equal(slot("foo{bar"), 15278);
    assert_int_equal(hps_redis_slot("", 0), 0);
    assert_int_equal(hps_redis_slot("\0\xff{\0}", 5), hps_redis_slot("\0", 1));
}

struct listed {
    char text[1000];
};

static void list(void *ctx, uint16_t first, uint16_t last, bool master, const struct hps_addr *addr)
{
    struct listed *listed = ctx;
    size_t size = strlen(listed->text);
    char address[HPS_ADDR_TEXT_MAX];
    snprintf(listed->text + size, sizeof(listed->text) - size, "%u-%u %s %s\n", first, last,
             master ? "master" : "replica", hps_addr_print(addr, address, sizeof(address)));
}

static hps_status read_map(const char *text, struct listed *listed, struct hps_error *err)
{
    struct hps_redis_reader *reader = hps_redis_reader_new(1 << 20);
    struct hps_redis_values values;
    struct hps_redis_reply reply = {.values = &values};
    struct hps_addr asked;

    memset(listed, 0, sizeof(*listed));
    hps_redis_values_init(&values, 1000, 1 << 20);
    assert_int_equal(hps_addr_parse("10.0.0.9:7000", &asked, NULL), HPS_OK);
    assert_int_equal(hps_redis_reader_feed(reader, text, strlen(text)), HPS_OK);
    assert_int_equal(hps_redis_reader_next(reader, &reply, NULL), HPS_OK);
    hps_status status = hps_redis_slots_read(&values, &asked, list, listed, err);
    hps_redis_values_fini(&values);
    hps_redis_reader_free(reader);
    return status;
}

static void test_map_when_it_has_metadata_and_unknown_hosts_then_every_node_is_reported(
    void **state)
{
    struct listed listed;
    (void)state;
    assert_int_equal(
        read_map("*2\r\n"
                 "*4\r\n:0\r\n:100\r\n"
                 "*4\r\n$8\r\n10.0.0.1\r\n:7001\r\n$2\r\nid\r\n*2\r\n+hostname\r\n+a\r\n"
                 "*4\r\n$3\r\n::1\r\n:7002\r\n$2\r\nid\r\n*0\r\n"
                 "*3\r\n:101\r\n:16383\r\n*3\r\n$-1\r\n:7003\r\n$2\r\nid\r\n",
                 &listed, NULL),
        HPS_OK);
    assert_string_equal(listed.text, "0-100 master 10.0.0.1:7001\n0-100 replica [::1]:7002\n"
                                     "101-16383 master 10.0.0.9:7003\n");
}

static void test_map_when_the_reply_is_no_map_then_io_and_no_node_is_reported(void **state)
{
    static const char *const texts[] = {
        "+OK\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n+h\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n+h\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:70000\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+h\r\n",
        "*2\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:1\r\n:3\r\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct listed listed;
        struct hps_error err = {0};
        assert_int_equal(read_map(texts[i], &listed, &err), HPS_IO);
        assert_string_equal(listed.text, "");
        assert_non_null(strstr(err.text, "CLUSTER SLOTS"));
    }
}

static void test_redirect_when_read_then_it_has_the_address_and_the_kind(void **state)
{
    struct hps_redis_redirect redirect;
    struct hps_addr asked;
    (void)state;
    assert_int_equal(hps_addr_parse("10.0.0.9:7000", &asked, NULL), HPS_OK);
    assert_true(hps_redis_redirect_read("MOVED 3999 127.0.0.1:6381", &asked, &redirect));
    assert_false(redirect.ask);
    assert_int_equal(redirect.slot, 3999);
    assert_string_equal(redirect.addr.host, "127.0.0.1");
    assert_int_equal(redirect.addr.port, 6381);
    assert_true(hps_redis_redirect_read("ASK 16383 ::1:7", &asked, &redirect));
    assert_true(redirect.ask);
    assert_string_equal(redirect.addr.host, "::1");
    assert_true(hps_redis_redirect_read("MOVED 1 :6381", &asked, &redirect));
    assert_string_equal(redirect.addr.host, "10.0.0.9");
    static const char *const others[] = {"ERR x",     "MOVED",           "MOVED 16384 h:1",
                                         "MOVED 1 h", "MOVED 1 h:",      "MOVED 1 h:0",
                                         "ASK x h:1", "MOVED 1 h:65536", "MOVED 1 h:1x"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_false(hps_redis_redirect_read(others[i], &asked, &redirect));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slot_when_a_key_has_a_tag_then_the_tag_decides),
        cmocka_unit_test(
            test_map_when_it_has_metadata_and_unknown_hosts_then_every_node_is_reported),
        cmocka_unit_test(test_map_when_the_reply_is_no_map_then_io_and_no_node_is_reported),
        cmocka_unit_test(test_redirect_when_read_then_it_has_the_address_and_the_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
