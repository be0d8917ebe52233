/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether anybody holds a pin, asked by a thread that is overtaken by a hand-over at each of its
 * loads: version.c is compiled with loads that first move the pin off the shard they look at.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <stdatomic.h>

static void before_load(const volatile void *at);

#undef atomic_load
#define atomic_load(at) \
    (before_load(at), atomic_load_explicit(at, memory_order_seq_cst)) /* NOLINT */
#include "cache/version/version.c" /* NOLINT(bugprone-suspicious-include) */
#undef atomic_load

static struct {
    struct hps_version *version;
    unsigned shard; /* the pin's */
    unsigned n_moves;
} rig;

static void pin_on(unsigned shard)
{
    my_shard = shard;
    hps_version_pin(rig.version);
}

static void unpin_on(unsigned shard)
{
    my_shard = shard;
    hps_version_unpin(rig.version);
}

/* As by two holders: the next one takes its pin before the last one gives its own back. */
static void before_load(const volatile void *at)
{
    const char *pins = rig.version == NULL ? NULL : (const char *)rig.version->pins;
    const volatile char *byte = at;
    if (pins == NULL || byte < pins || byte >= pins + sizeof(rig.version->pins)) {
        return;
    }
    unsigned read = (unsigned)((size_t)(byte - pins) / sizeof(rig.version->pins[0]));
    if (read == rig.shard) {
        unsigned next = (read + HPS_PIN_SHARDS / 2) % HPS_PIN_SHARDS;
        pin_on(next);
        unpin_on(read);
        rig.shard = next;
        rig.n_moves++;
    }
}

static void test_idle_when_the_pin_is_never_where_it_looks_then_not_idle(void **state)
{
    (void)state;
    struct hps_version *version = hps_version_new("m", 1, 1);
    assert_non_null(version);
    rig.version = version;
    for (unsigned first = 0; first < HPS_PIN_SHARDS; first++) {
        pin_on(first);
        rig.shard = first;
        for (unsigned i = 0; i < 100; i++) {
            assert_false(hps_version_idle(version));
        }
        unpin_on(rig.shard);
        rig.shard = HPS_PIN_SHARDS; /* none */
        assert_true(hps_version_idle(version));
    }
    assert_true(rig.n_moves > 0);
    rig.version = NULL;
    hps_version_free(version);
}

static void test_idle_when_pins_are_given_back_on_other_threads_then_idle(void **state)
{
    (void)state;
    struct hps_version *version = hps_version_new("m", 1, 1);
    assert_non_null(version);
    rig.version = version;
    rig.shard = HPS_PIN_SHARDS;
    pin_on(1);
    pin_on(2);
    unpin_on(3);
    assert_false(hps_version_idle(version));
    unpin_on(4);
    assert_true(hps_version_idle(version));
    rig.version = NULL;
    hps_version_free(version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_when_the_pin_is_never_where_it_looks_then_not_idle),
        cmocka_unit_test(test_idle_when_pins_are_given_back_on_other_threads_then_idle),
    };
    return cmocka_run_group_tests_name("version_idle", tests, NULL, NULL);
}
