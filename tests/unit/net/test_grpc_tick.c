/* SPDX-License-Identifier: Apache-2.0
 *
 * The tick of a loop with more connections than it looks at in a turn. Time is the fake clock's.
 * Test thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "tests/lib/grpc_rig.h"

enum { WIRES = 100, PER_TURN = 64 };

/* None of the connections sends a request. One is lost just as the tick would come to it. */
static void test_tick_when_connections_are_many_then_some_in_each_turn(void **state)
{
    static struct wire wires[WIRES];
    struct rig rig;

    (void)state;
    hps_log_level_set(HPS_LOG_ERROR);
    hps_clock_fake(hps_clock_us());
    rig_open(&rig, &rig_limits);
    for (unsigned i = 0; i < WIRES; i++) {
        wire_open(&wires[i], &rig);
        wire_take_settings(&wires[i]);
    }
    assert_int_equal(rig.n_connections, WIRES);
    wire_close(&wires[WIRES - PER_TURN - 1]); /* the newest ones come first */
    hps_clock_advance(rig_limits.handshake_timeout_us + 1);
    rig_turn(&rig);
    assert_int_equal(rig.n_connections, WIRES - PER_TURN - 1);
    rig_turn(&rig);
    assert_int_equal(rig.n_connections, 0);
    for (unsigned i = 0; i < WIRES; i++) {
        wire_close(&wires[i]);
    }
    rig_close(&rig);
    hps_clock_real();
    hps_log_level_set(HPS_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tick_when_connections_are_many_then_some_in_each_turn),
    };
    return cmocka_run_group_tests_name("grpc_tick", tests, NULL, NULL);
}
