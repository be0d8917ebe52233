/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of every call of device.h, on the simulated device.
 */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/heap.h"
#include "cache/device/sim/sim.h"
#include "cache/device/simt.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/pause.h"
#include "tests/unit/cache/device/sim/sim_test.h"

enum { SIZE = 1000 };

/* A device, a stream, an event, and memory on both sides. */
struct rig {
    struct hps_device *device;
    struct hps_stream_q *stream;
    struct hps_event *event;
    hps_devptr memory;
    uint8_t *host;
    hps_devptr mapped;
};

struct bump_args {
    uint32_t *word;
    uint32_t by;
    uint32_t pad;
};

HPS_KERNEL(bump, struct bump_args, args, 32, 1)
{
    if (hps_thread() == 0) {
        hps_atomic_add_u32(args->word, args->by, HPS_RELAXED);
    }
}
SIM_KERNEL(bump, struct bump_args, 32, 0);

static struct rig rig_open(const struct hps_device_sim_config *config)
{
    struct rig rig = {.device = sim_open(config, &bump)};
    void *host = NULL;
    assert_int_equal(hps_stream_q_new(rig.device, "one", false, &rig.stream, NULL), HPS_OK);
    assert_int_equal(hps_event_new(rig.device, &rig.event, NULL), HPS_OK);
    assert_int_equal(hps_device_alloc(rig.device, SIZE, &rig.memory, NULL), HPS_OK);
    assert_int_equal(hps_device_host_alloc(rig.device, SIZE, &host, &rig.mapped, NULL), HPS_OK);
    rig.host = host;
    return rig;
}

static void rig_close(struct rig *rig)
{
    hps_stream_q_free(rig->stream);
    hps_event_free(rig->event);
    hps_device_free(rig->device, rig->memory);
    hps_device_host_free(rig->device, rig->host);
    hps_device_close(rig->device);
}

static void rig_finish(struct rig *rig)
{
    assert_int_equal(hps_event_record(rig->event, rig->stream), HPS_OK);
    assert_int_equal(hps_event_wait(rig->event), HPS_OK);
    assert_int_equal(hps_event_done(rig->event), HPS_OK);
}

/* ---- devices --------------------------------------------------------------------------------- */

static void test_open_when_the_index_is_too_large_then_not_found(void **state)
{
    (void)state;
    int n = -1;
    struct hps_error err = {0};
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    assert_int_equal(hps_device_count(&sim.driver, &n, &err), HPS_OK);
    assert_int_equal(n, 8);
    struct hps_device *device = NULL;
    assert_int_equal(hps_device_open(&sim.driver, n, NULL, 0, &device, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "device 8: the machine has 8"));
    assert_null(device);
    hps_device_close(NULL);
}

static void test_info_when_opened_then_describes_the_device(void **state)
{
    (void)state;
    struct hps_device *device =
        sim_open(&(struct hps_device_sim_config){.memory_bytes = 4096}, NULL);
    const struct hps_device_info *info = hps_device_info(device);
    assert_string_equal(info->name, "simulated device 0");
    assert_int_equal(info->kind, HPS_DEVICE_SIM);
    assert_int_equal(info->memory_bytes, 4096);
    assert_int_equal(info->memory_free_bytes, 4096);
    assert_true(info->n_processors > 0);
    assert_false(hps_device_lost(device));
    struct hps_error why;
    hps_device_lost_why(device, &why);
    assert_int_equal(why.status, HPS_OK);
    assert_string_equal(why.text, "");
    hps_device_close(device);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_alloc_when_beyond_the_limit_then_no_memory_until_freed(void **state)
{
    (void)state;
    struct hps_device *device =
        sim_open(&(struct hps_device_sim_config){.memory_bytes = 4096}, NULL);
    struct hps_error err = {0};
    hps_devptr one = 0;
    hps_devptr two = 0;
    assert_int_equal(hps_device_alloc(device, 3000, &one, &err), HPS_OK);
    assert_int_equal(one % 256, 0);
    assert_int_equal(hps_device_alloc(device, 1097, &two, &err), HPS_NO_MEMORY);
    assert_non_null(strstr(err.text, "1097 bytes are needed, 1096 of 4096 are free"));
    assert_int_equal(two, 0);
    hps_device_free(device, one);
    assert_int_equal(hps_device_alloc(device, 4096, &two, &err), HPS_OK);
    hps_device_free(device, two);
    hps_device_free(device, 0);
    hps_device_close(device);
}

static void test_host_memory_when_allocated_then_zeroed_and_outside_the_devices_limit(void **state)
{
    (void)state;
    struct hps_device *device =
        sim_open(&(struct hps_device_sim_config){.memory_bytes = 256}, NULL);
    void *host = NULL;
    hps_devptr mapped = 0;
    assert_int_equal(hps_device_host_alloc(device, 4096, &host, &mapped, NULL), HPS_OK);
    assert_int_not_equal(mapped, 0);
    for (size_t i = 0; i < 4096; i++) {
        assert_int_equal(((uint8_t *)host)[i], 0);
    }
    hps_device_host_free(device, host);
    hps_device_host_free(device, NULL);
    hps_device_close(device);
}

static void test_register_when_part_is_registered_then_invalid(void **state)
{
    (void)state;
    struct hps_device *device = sim_open(NULL, NULL);
    uint8_t *memory = hps_alloc_aligned(4096, 8192);
    struct hps_error err = {0};
    hps_devptr mapped = 0;
    assert_int_equal(hps_device_host_register(device, memory, 4097, &mapped, &err), HPS_OK);
    assert_int_equal(hps_device_host_register(device, memory + 4096, 4096, &mapped, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "registered already"));
    hps_device_host_unregister(device, memory);
    assert_int_equal(hps_device_host_register(device, memory + 4096, 4096, &mapped, &err), HPS_OK);
    hps_device_host_unregister(device, memory + 4096);
    hps_device_host_unregister(device, NULL);
    hps_device_close(device);
    hps_free_aligned(memory);
}

/* Drivers register memory once for all devices. */
static void test_register_when_two_devices_register_then_each_reaches_it_until_it_unregisters(
    void **state)
{
    (void)state;
    struct hps_device *first = sim_open(NULL, NULL);
    struct hps_device *second = NULL;
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    uint8_t *memory = hps_alloc_aligned(4096, 8192);
    struct hps_error err = {0};
    hps_devptr mapped = 0;
    hps_devptr other = 0;
    struct hps_stream_q *stream = NULL;
    assert_int_equal(hps_device_open(&sim.driver, 1, NULL, 0, &second, &err), HPS_OK);
    assert_int_equal(hps_device_host_register(first, memory, 8192, &mapped, &err), HPS_OK);
    assert_int_equal(hps_device_host_register(second, memory, 8192, &other, &err), HPS_OK);
    assert_int_not_equal(other, 0);
    hps_device_host_unregister(first, memory);
    assert_int_equal(hps_device_host_register(first, memory, 4096, &mapped, &err), HPS_INVALID);
    assert_int_equal(hps_stream_q_new(second, "s", false, &stream, &err), HPS_OK);
    memory[1] = 7;
    assert_int_equal(hps_copy_on_device(stream, other, other + 1, 1), HPS_OK);
    hps_stream_q_free(stream);
    assert_int_equal(memory[0], 7);
    hps_device_host_unregister(second, memory);
    assert_int_equal(hps_device_host_register(first, memory, 4096, &mapped, &err), HPS_OK);
    hps_device_host_unregister(first, memory);
    hps_device_close(first);
    hps_device_close(second);
    hps_free_aligned(memory);
}

/* ---- streams and events ---------------------------------------------------------------------- */

static void test_work_when_given_then_done_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct rig rig =
            rig_open(&(struct hps_device_sim_config){.seed = seed, .delay_us_max = 20});
        const struct bump_args args = {hps_device_sim_host(rig.device, rig.memory), 5, 0};
        memset(rig.host, 1, SIZE);
        assert_int_equal(hps_copy_to_device(rig.stream, rig.memory, rig.host, SIZE), HPS_OK);
        assert_int_equal(hps_fill_on_device(rig.stream, rig.memory, 0, 4), HPS_OK);
        assert_int_equal(hps_launch(rig.stream, &bump, 3, &args), HPS_OK);
        assert_int_equal(hps_copy_on_device(rig.stream, rig.memory + 8, rig.memory, 4), HPS_OK);
        assert_int_equal(hps_launch(rig.stream, &bump, 1, &args), HPS_OK);
        assert_int_equal(hps_copy_to_host(rig.stream, rig.host, rig.memory, SIZE), HPS_OK);
        assert_int_equal(hps_copy_to_host(rig.stream, rig.host, rig.memory, 0), HPS_OK);
        rig_finish(&rig);
        uint32_t words[3];
        memcpy(words, rig.host, sizeof(words));
        assert_int_equal(words[0], 20);
        assert_int_equal(words[1], 0x01010101);
        assert_int_equal(words[2], 15);
        rig_close(&rig);
    }
}

static void test_event_when_work_before_it_waits_then_again(void **state)
{
    (void)state;
    struct rig rig = rig_open(NULL);
    assert_int_equal(hps_event_done(rig.event), HPS_OK); /* never recorded */
    assert_int_equal(hps_event_wait(rig.event), HPS_OK);
    hps_device_sim_hold(rig.device, true);
    assert_int_equal(hps_fill_on_device(rig.stream, rig.memory, 7, SIZE), HPS_OK);
    assert_int_equal(hps_event_record(rig.event, rig.stream), HPS_OK);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(hps_event_done(rig.event), HPS_AGAIN);
    }
    hps_device_sim_hold(rig.device, false);
    assert_int_equal(hps_event_wait(rig.event), HPS_OK);
    assert_int_equal(hps_event_done(rig.event), HPS_OK);
    hps_device_sim_hold(rig.device, true);
    assert_int_equal(hps_event_record(rig.event, rig.stream), HPS_OK); /* again */
    assert_int_equal(hps_event_done(rig.event), HPS_AGAIN);
    hps_device_sim_hold(rig.device, false);
    rig_close(&rig);
}

static void test_event_when_freed_in_flight_then_its_waiters_continue(void **state)
{
    (void)state;
    struct rig rig = rig_open(NULL);
    struct hps_stream_q *other = NULL;
    struct hps_event *event = NULL;
    assert_int_equal(hps_stream_q_new(rig.device, "two", true, &other, NULL), HPS_OK);
    assert_int_equal(hps_event_new(rig.device, &event, NULL), HPS_OK);
    hps_device_sim_hold(rig.device, true);
    assert_int_equal(hps_fill_on_device(rig.stream, rig.memory, 3, SIZE), HPS_OK);
    assert_int_equal(hps_event_record(event, rig.stream), HPS_OK);
    assert_int_equal(hps_stream_q_wait(other, event), HPS_OK);
    assert_int_equal(hps_copy_to_host(other, rig.host, rig.memory, SIZE), HPS_OK);
    assert_int_equal(hps_event_record(rig.event, other), HPS_OK);
    hps_event_free(event);
    hps_event_free(NULL);
    hps_device_sim_hold(rig.device, false);
    assert_int_equal(hps_event_wait(rig.event), HPS_OK);
    assert_int_equal(rig.host[SIZE - 1], 3);
    hps_stream_q_free(other);
    hps_stream_q_free(NULL);
    rig_close(&rig);
}

static void test_stream_when_freed_then_its_work_is_done(void **state)
{
    (void)state;
    struct rig rig = rig_open(&(struct hps_device_sim_config){.seed = 1, .delay_us_max = 200});
    for (uint8_t i = 1; i <= 20; i++) {
        assert_int_equal(hps_fill_on_device(rig.stream, rig.mapped, i, SIZE), HPS_OK);
    }
    hps_stream_q_free(rig.stream);
    assert_int_equal(rig.host[0], 20);
    rig.stream = NULL;
    rig_close(&rig);
}

/* State letter of the thread of this name in /proc; 0: no such thread. */
static char thread_state(const char *name)
{
    DIR *tasks = opendir("/proc/self/task");
    char found = 0;
    assert_non_null(tasks);
    for (struct dirent *task; found == 0 && (task = readdir(tasks)) != NULL;) {
        char path[512];
        char text[128] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            if (fgets(text, sizeof(text), file) != NULL && strstr(text, name) != NULL) {
                found = strchr(text, ')')[2];
            }
            (void)fclose(file);
        }
    }
    (void)closedir(tasks);
    return found;
}

static void test_stream_when_idle_then_sleeps(void **state)
{
    (void)state;
    struct rig rig = rig_open(NULL);
    rig_finish(&rig);
    while (thread_state("(sim-one)") != 'S') {
        brief_pause();
    }
    for (unsigned i = 0; i < 20; i++) {
        brief_pause();
        assert_int_equal(thread_state("(sim-one)"), 'S');
    }
    rig_close(&rig);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void assert_all_lost(struct rig *rig)
{
    struct hps_error err = {0};
    hps_devptr ptr = 0;
    void *host = NULL;
    struct hps_stream_q *stream = NULL;
    struct hps_event *event = NULL;
    const struct bump_args args = {0};
    assert_true(hps_device_lost(rig->device));
    assert_int_equal(hps_event_done(rig->event), HPS_DATA_LOSS);
    assert_int_equal(hps_event_wait(rig->event), HPS_DATA_LOSS);
    assert_int_equal(hps_event_record(rig->event, rig->stream), HPS_DATA_LOSS);
    assert_int_equal(hps_stream_q_wait(rig->stream, rig->event), HPS_DATA_LOSS);
    assert_int_equal(hps_copy_to_device(rig->stream, rig->memory, rig->host, 1), HPS_DATA_LOSS);
    assert_int_equal(hps_copy_to_host(rig->stream, rig->host, rig->memory, 1), HPS_DATA_LOSS);
    assert_int_equal(hps_copy_on_device(rig->stream, rig->memory, rig->memory, 1), HPS_DATA_LOSS);
    assert_int_equal(hps_fill_on_device(rig->stream, rig->memory, 0, 1), HPS_DATA_LOSS);
    assert_int_equal(hps_launch(rig->stream, &bump, 1, &args), HPS_DATA_LOSS);
    assert_int_equal(hps_device_alloc(rig->device, 1, &ptr, &err), HPS_DATA_LOSS);
    assert_non_null(strstr(err.text, "is lost: "));
    assert_int_equal(hps_device_host_alloc(rig->device, 1, &host, &ptr, &err), HPS_DATA_LOSS);
    assert_int_equal(hps_device_host_register(rig->device, &err, 1, &ptr, &err), HPS_DATA_LOSS);
    assert_int_equal(hps_stream_q_new(rig->device, "x", false, &stream, &err), HPS_DATA_LOSS);
    assert_int_equal(hps_event_new(rig->device, &event, &err), HPS_DATA_LOSS);
}

static void test_loss_when_at_the_nth_operation_then_it_is_skipped_and_all_calls_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        const struct hps_device_sim_config reported = {.fail_at = n};
        struct rig rig = rig_open(n == 2 ? &reported : NULL);
        if (n != 2) {
            hps_device_sim_fail(rig.device, n);
        }
        for (uint8_t i = 0; i < 4; i++) {
            hps_status status = hps_fill_on_device(rig.stream, rig.mapped + i, 9, 1);
            assert_true(status == HPS_OK || status == HPS_DATA_LOSS);
        }
        hps_status status = hps_event_record(rig.event, rig.stream);
        assert_true(status == HPS_OK || status == HPS_DATA_LOSS);
        assert_int_equal(hps_event_wait(rig.event), HPS_DATA_LOSS);
        while (!hps_device_quiet(rig.device)) {
            brief_pause();
        }
        for (uint8_t i = 0; i < 4; i++) {
            assert_int_equal(rig.host[i], i + 1U < n ? 9 : 0);
        }
        assert_all_lost(&rig);
        struct hps_error why;
        hps_device_lost_why(rig.device, &why);
        assert_int_equal(why.status, HPS_DATA_LOSS);
        assert_non_null(strstr(why.text, "simulated failure of work"));
        rig_close(&rig);
    }
}

struct waiter {
    struct hps_event *event;
    hps_status status;
};

static void *wait_for_event(void *arg)
{
    struct waiter *waiter = arg;
    waiter->status = hps_event_wait(waiter->event);
    return NULL;
}

static void test_give_up_when_a_thread_waits_then_it_returns(void **state)
{
    (void)state;
    struct rig rig = rig_open(NULL);
    struct hps_stream_q *other = NULL;
    struct hps_event *never = NULL;
    assert_int_equal(hps_stream_q_new(rig.device, "two", false, &other, NULL), HPS_OK);
    assert_int_equal(hps_event_new(rig.device, &never, NULL), HPS_OK);
    hps_device_sim_hold(rig.device, true);
    assert_int_equal(hps_fill_on_device(rig.stream, rig.mapped, 9, SIZE), HPS_OK);
    assert_int_equal(hps_event_record(rig.event, rig.stream), HPS_OK);
    assert_int_equal(hps_stream_q_wait(other, rig.event), HPS_OK);
    assert_int_equal(hps_event_record(never, other), HPS_OK);
    struct waiter waiter = {never, HPS_OK};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_event, &waiter), 0);
    hps_device_give_up(rig.device, "no progress for 5 s");
    hps_device_give_up(rig.device, "again");
    pthread_join(thread, NULL);
    assert_int_equal(waiter.status, HPS_DATA_LOSS);
    struct hps_error why;
    hps_device_lost_why(rig.device, &why);
    assert_string_equal(why.text, "device 0 (simulated device 0) is lost: no progress for 5 s");
    while (!hps_device_quiet(rig.device)) {
        brief_pause();
    }
    assert_int_equal(rig.host[0], 0); /* queued work is dropped */
    assert_all_lost(&rig);
    hps_stream_q_free(other);
    hps_event_free(never);
    rig_close(&rig);
}

static void test_fail_when_at_once_then_lost_without_work(void **state)
{
    (void)state;
    struct rig rig = rig_open(NULL);
    hps_device_sim_fail(rig.device, 0);
    assert_all_lost(&rig);
    rig_close(&rig);
}

static void scenario(void *ctx)
{
    (void)ctx;
    struct hps_device *device = NULL;
    struct hps_stream_q *stream = NULL;
    struct hps_event *event = NULL;
    hps_devptr memory = 0;
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    const struct hps_kernel *kernel = &bump;
    hps_status status = hps_device_open(&sim.driver, 0, &kernel, 1, &device, NULL);
    status = status != HPS_OK ? status : hps_device_alloc(device, SIZE, &memory, NULL);
    status = status != HPS_OK ? status : hps_stream_q_new(device, "x", false, &stream, NULL);
    status = status != HPS_OK ? status : hps_event_new(device, &event, NULL);
    status = status != HPS_OK ? status : hps_fill_on_device(stream, memory, 0, SIZE);
    const struct bump_args args = {(uint32_t *)(uintptr_t)memory, 1, 0};
    status = status != HPS_OK ? status : hps_launch(stream, &bump, 1, &args);
    status = status != HPS_OK ? status : hps_event_record(event, stream);
    status = status != HPS_OK ? status : hps_event_wait(event);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_DATA_LOSS);
    hps_stream_q_free(stream);
    hps_event_free(event);
    if (device != NULL) {
        hps_device_free(device, memory);
    }
    hps_device_close(device);
}

static void test_heap_when_any_allocation_fails_then_an_error_or_a_lost_device(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(scenario, NULL) > 40);
}

/* ---- forbidden calls ------------------------------------------------------------------------- */

static void copy_past_the_end(void)
{
    struct rig rig = rig_open(NULL);
    hps_ignore(hps_copy_to_device(rig.stream, rig.memory + 1, rig.host, SIZE));
}

static void copy_to_unregistered(void)
{
    static uint8_t anywhere[16];
    struct rig rig = rig_open(NULL);
    hps_ignore(hps_copy_to_host(rig.stream, anywhere, rig.memory, 16));
}

static void copy_to_host_at_the_device(void)
{
    struct rig rig = rig_open(NULL);
    hps_ignore(
        hps_copy_to_host(rig.stream, hps_device_sim_host(rig.device, rig.memory), rig.memory, 16));
}

static void fill_past_the_end(void)
{
    struct rig rig = rig_open(NULL);
    hps_ignore(hps_fill_on_device(rig.stream, rig.memory, 0, SIZE + 1));
}

static void free_twice(void)
{
    struct rig rig = rig_open(NULL);
    hps_device_free(rig.device, rig.memory);
    hps_device_free(rig.device, rig.memory);
}

static void close_with_memory(void)
{
    struct hps_device *device = sim_open(NULL, NULL);
    hps_devptr memory = 0;
    hps_ignore(hps_device_alloc(device, SIZE, &memory, NULL));
    hps_device_close(device);
}

static void launch_what_was_not_loaded(void)
{
    struct rig rig = rig_open(NULL);
    struct hps_kernel other = bump;
    const struct bump_args args = {0};
    hps_ignore(hps_launch(rig.stream, &other, 1, &args));
}

static void test_mistakes_when_made_then_the_process_ends_with_a_message(void **state)
{
    (void)state;
    sim_dies_saying(copy_past_the_end, "copy to: 1000 bytes at ");
    sim_dies_saying(copy_past_the_end, "the last 1 lie past the end");
    sim_dies_saying(copy_to_unregistered, "is neither memory of the device nor registered");
    sim_dies_saying(copy_to_host_at_the_device, "is memory of the device, not of the host");
    sim_dies_saying(fill_past_the_end, "fill: 1001 bytes");
    sim_dies_saying(free_twice, "is freed, but is no memory of that kind");
    sim_dies_saying(close_with_memory, "closed while 1000 bytes are allocated");
    sim_dies_saying(launch_what_was_not_loaded, "kernel_is_loaded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_the_index_is_too_large_then_not_found),
        cmocka_unit_test(test_info_when_opened_then_describes_the_device),
        cmocka_unit_test(test_alloc_when_beyond_the_limit_then_no_memory_until_freed),
        cmocka_unit_test(test_host_memory_when_allocated_then_zeroed_and_outside_the_devices_limit),
        cmocka_unit_test(test_register_when_part_is_registered_then_invalid),
        cmocka_unit_test(
            test_register_when_two_devices_register_then_each_reaches_it_until_it_unregisters),
        cmocka_unit_test(test_work_when_given_then_done_in_order),
        cmocka_unit_test(test_event_when_work_before_it_waits_then_again),
        cmocka_unit_test(test_event_when_freed_in_flight_then_its_waiters_continue),
        cmocka_unit_test(test_stream_when_freed_then_its_work_is_done),
        cmocka_unit_test(test_stream_when_idle_then_sleeps),
        cmocka_unit_test(test_loss_when_at_the_nth_operation_then_it_is_skipped_and_all_calls_fail),
        cmocka_unit_test(test_give_up_when_a_thread_waits_then_it_returns),
        cmocka_unit_test(test_fail_when_at_once_then_lost_without_work),
        cmocka_unit_test(test_heap_when_any_allocation_fails_then_an_error_or_a_lost_device),
        cmocka_unit_test(test_mistakes_when_made_then_the_process_ends_with_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
