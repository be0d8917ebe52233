/* SPDX-License-Identifier: Apache-2.0
 *
 * The set of models: pins, active versions, and activation while readers pin.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/heap.h"
#include "cache/version/models.h"
#include "tests/lib/pause.h"

static struct hps_version *make(const char *model, int64_t number)
{
    struct hps_version *version = hps_version_new(model, number, 1);
    assert_non_null(version);
    return version;
}

static int64_t pinned_number(struct hps_models *models, const char *model, int64_t number)
{
    struct hps_version *version = NULL;
    struct hps_error err;
    if (hps_models_pin(models, model, strlen(model), number, &version, &err) != HPS_OK) {
        return -1;
    }
    int64_t found = version->number;
    hps_version_unpin(version);
    return found;
}

static void drop(struct hps_models *models, struct hps_version *version)
{
    assert_int_equal(hps_models_remove(models, version->model, version->number), HPS_OK);
    assert_true(hps_version_idle(version));
    hps_version_free(version);
}

static void test_pin_when_there_are_many_models_then_each_has_its_versions(void **state)
{
    enum { N_MODELS = 300 };
    static struct hps_version *versions[2 * N_MODELS];
    struct hps_models *models = hps_models_new();
    char name[32];
    (void)state;
    for (int i = 0; i < 2 * N_MODELS; i++) { /* the versions of a model are not adjacent */
        snprintf(name, sizeof(name), "model-%d", i % N_MODELS);
        versions[i] = make(name, 1 + i / N_MODELS);
        assert_int_equal(hps_models_add(models, versions[i]), HPS_OK);
    }
    for (int i = 0; i < N_MODELS; i++) {
        snprintf(name, sizeof(name), "model-%d", i);
        assert_int_equal(hps_models_activate(models, name, 1 + i % 2), HPS_OK);
    }
    for (int i = 0; i < 2 * N_MODELS; i += 3) {
        drop(models, versions[i]);
        versions[i] = NULL;
    }
    for (int i = 0; i < N_MODELS; i++) {
        snprintf(name, sizeof(name), "model-%d", i);
        int active = versions[i + i % 2 * N_MODELS] == NULL ? -1 : 1 + i % 2;
        assert_int_equal(pinned_number(models, name, 0), active);
        assert_int_equal(pinned_number(models, name, 1), versions[i] == NULL ? -1 : 1);
        assert_int_equal(pinned_number(models, name, 2), versions[i + N_MODELS] == NULL ? -1 : 2);
    }
    for (int i = 0; i < 2 * N_MODELS; i++) {
        if (versions[i] != NULL) {
            drop(models, versions[i]);
        }
    }
    hps_models_free(models);
}

static void test_pin_when_active_switches_then_follows(void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *one = make("dlrm", 1);
    struct hps_version *two = make("dlrm", 2);
    assert_int_equal(hps_models_add(models, one), HPS_OK);
    assert_int_equal(pinned_number(models, "dlrm", 0), -1);
    assert_int_equal(hps_models_activate(models, "dlrm", 1), HPS_OK);
    assert_int_equal(hps_models_add(models, two), HPS_OK);
    assert_int_equal(pinned_number(models, "dlrm", 0), 1);
    assert_int_equal(pinned_number(models, "dlrm", 2), 2);
    assert_int_equal(hps_models_activate(models, "dlrm", 2), HPS_OK);
    assert_int_equal(pinned_number(models, "dlrm", 0), 2);
    assert_int_equal(hps_models_activate(models, "dlrm", 3), HPS_NOT_FOUND);
    assert_int_equal(pinned_number(models, "dlrm", 0), 2);
    drop(models, one);
    drop(models, two);
    hps_models_free(models);
}

static void test_pin_when_unknown_then_error_names_it(void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *one = make("dlrm", 1);
    assert_int_equal(hps_models_add(models, one), HPS_OK);
    struct hps_version *version = NULL;
    struct hps_error err;
    assert_int_equal(hps_models_pin(models, "nope", 4, 0, &version, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "\"nope\""));
    assert_int_equal(hps_models_pin(models, "dlrm", 3, 0, &version, &err), HPS_NOT_FOUND);
    assert_int_equal(hps_models_pin(models, "dlrm", 4, 9, &version, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "version 9"));
    assert_int_equal(hps_models_pin(models, "dlrm", 4, 0, &version, &err), HPS_UNAVAILABLE);
    assert_int_equal(hps_models_add(models, one), HPS_EXISTS);
    drop(models, one);
    hps_models_free(models);
}

static int64_t labelled(struct hps_models *models, const char *label, size_t size)
{
    struct hps_version *version = NULL;
    struct hps_error err;
    if (hps_models_pin_label(models, "m", 1, label, size, &version, &err) != HPS_OK) {
        assert_int_equal(err.status, HPS_NOT_FOUND);
        assert_non_null(strstr(err.text, "label"));
        return -1;
    }
    int64_t number = version->number;
    hps_version_unpin(version);
    return number;
}

static void test_pin_when_by_label_then_the_highest_number_with_it(void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *versions[4];
    static const char *const labels[] = {"a", "b", "b", NULL};
    for (int i = 0; i < 4; i++) {
        versions[i] = make("m", 1 + i);
        versions[i]->label = labels[i] != NULL ? hps_strdup(labels[i]) : NULL;
        assert_int_equal(hps_models_add(models, versions[i]), HPS_OK);
    }
    assert_int_equal(labelled(models, "a", 1), 1);
    assert_int_equal(labelled(models, "bc", 1), 3); /* active or not */
    assert_int_equal(labelled(models, "bc", 2), -1);
    assert_int_equal(labelled(models, "b", 2), -1); /* the label contains a NUL */
    drop(models, versions[2]);
    assert_int_equal(labelled(models, "b", 1), 2);
    drop(models, versions[0]);
    drop(models, versions[1]);
    drop(models, versions[3]);
    hps_models_free(models);
}

/* Names come from clients, and protobuf allows a NUL in them. */
static void test_names_when_a_nul_follows_a_known_one_then_unknown(void **state)
{
    (void)state;
    static const char name[64] = "dlrm";
    struct hps_models *models = hps_models_new();
    struct hps_version *one = make("dlrm", 1);
    one->tables[0].name = hps_strdup("dlrm");
    assert_int_equal(hps_models_add(models, one), HPS_OK);
    assert_int_equal(hps_models_activate(models, "dlrm", 1), HPS_OK);
    for (size_t size = 5; size <= sizeof(name); size++) {
        struct hps_version *version = NULL;
        struct hps_error err;
        assert_int_equal(hps_models_pin(models, name, size, 0, &version, &err), HPS_NOT_FOUND);
        assert_int_equal(hps_version_table(one, name, size), UINT32_MAX);
    }
    assert_int_equal(hps_version_table(one, name, 4), 0);
    drop(models, one);
    hps_models_free(models);
}

static void test_pin_when_a_model_is_expected_then_unavailable_with_the_reason(void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *version = NULL;
    struct hps_error err;
    assert_int_equal(hps_models_expect(models, "dlrm", NULL), HPS_OK); /* no model was expected */
    assert_int_equal(hps_models_expect(models, "dlrm", "dlrm comes, 1 %"), HPS_OK);
    assert_int_equal(hps_models_expect(models, "other", "other comes"), HPS_OK);
    assert_int_equal(hps_models_expect(models, "dlrm", "dlrm comes, 25 %"), HPS_OK);
    for (int64_t number = 0; number < 2; number++) {
        assert_int_equal(hps_models_pin(models, "dlrm", 4, number, &version, &err),
                         HPS_UNAVAILABLE);
        assert_string_equal(err.text, "dlrm comes, 25 %");
    }
    assert_int_equal(hps_models_pin(models, "dlrm", 3, 0, &version, &err), HPS_NOT_FOUND);
    struct hps_version *one = make("dlrm", 1);
    assert_int_equal(hps_models_add(models, one), HPS_OK);
    assert_int_equal(hps_models_activate(models, "dlrm", 1), HPS_OK);
    assert_int_equal(pinned_number(models, "dlrm", 0), 1); /* an existing version needs no wait */
    assert_int_equal(hps_models_expect(models, "dlrm", NULL), HPS_OK);
    drop(models, one);
    assert_int_equal(hps_models_pin(models, "dlrm", 4, 0, &version, &err), HPS_NOT_FOUND);
    hps_models_free(models); /* while a model is still expected */
}

struct race {
    struct hps_models *models;
    atomic_bool stop;
    atomic_ulong pins;
};

static void *pin_for_ever(void *arg)
{
    struct race *race = arg;
    while (!atomic_load(&race->stop)) {
        struct hps_version *version = NULL;
        struct hps_error err;
        if (hps_models_pin(race->models, "m", 1, 0, &version, &err) == HPS_OK) {
            if (strcmp(version->model, "m") != 0) {
                return "freed under a pin";
            }
            hps_version_unpin(version);
            atomic_fetch_add(&race->pins, 1);
        }
    }
    return NULL;
}

/* From expected to active, a reader never gets NOT_FOUND. */
static void *pin_until_there(void *arg)
{
    struct race *race = arg;
    struct hps_version *version = NULL;
    struct hps_error err;
    hps_status status;
    do {
        status = hps_models_pin(race->models, "m", 1, 0, &version, &err);
        atomic_fetch_add(&race->pins, 1);
    } while (status == HPS_UNAVAILABLE);
    if (status != HPS_OK) {
        return "not found";
    }
    hps_version_unpin(version);
    return NULL;
}

static void test_pin_when_an_expected_model_becomes_active_then_never_not_found(void **state)
{
    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        struct race race = {.models = hps_models_new()};
        pthread_t reader;
        void *failure = NULL;
        struct hps_version *one = make("m", 1);
        assert_int_equal(hps_models_expect(race.models, "m", "it comes"), HPS_OK);
        assert_int_equal(pthread_create(&reader, NULL, pin_until_there, &race), 0);
        while (atomic_load(&race.pins) == 0) {
        }
        assert_int_equal(hps_models_add(race.models, one), HPS_OK);
        assert_int_equal(hps_models_activate(race.models, "m", 1), HPS_OK);
        assert_int_equal(hps_models_expect(race.models, "m", NULL), HPS_OK);
        pthread_join(reader, &failure);
        if (failure != NULL) {
            fail_msg("%s", (const char *)failure);
        }
        drop(race.models, one);
        hps_models_free(race.models);
    }
}

static void test_remove_when_readers_pin_then_never_freed_under_them(void **state)
{
    (void)state;
    struct race race = {.models = hps_models_new()};
    pthread_t readers[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, pin_for_ever, &race), 0);
    }
    struct hps_version *old = NULL;
    for (int64_t number = 1; number <= 300 || atomic_load(&race.pins) < 1000; number++) {
        struct hps_version *next = make("m", number);
        assert_int_equal(hps_models_add(race.models, next), HPS_OK);
        assert_int_equal(hps_models_activate(race.models, "m", number), HPS_OK);
        if (old != NULL) {
            assert_int_equal(hps_models_remove(race.models, "m", old->number), HPS_OK);
            while (!hps_version_idle(old)) {
                brief_pause();
            }
            memset(old->model, 'x', 1);
            hps_version_free(old);
        }
        old = next;
    }
    atomic_store(&race.stop, true);
    for (int i = 0; i < 2; i++) {
        void *failure = NULL;
        pthread_join(readers[i], &failure);
        assert_null(failure);
    }
    drop(race.models, old);
    hps_models_free(race.models);
}

/* out_digits: the version numbers in order, one digit each. */
static size_t pin_all(struct hps_models *models, const char *model, size_t n_max,
                      int64_t *out_active, int64_t *out_digits)
{
    struct hps_version *versions[4];
    assert_true(n_max <= 4);
    size_t n = hps_models_pin_all(models, model, strlen(model), versions, n_max, out_active);
    *out_digits = 0;
    for (size_t i = 0; i < n && n <= n_max; i++) {
        *out_digits = *out_digits * 10 + versions[i]->number;
        hps_version_unpin(versions[i]);
    }
    return n;
}

static void test_pin_all_when_there_are_several_versions_then_all_in_order_or_none(void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *all[] = {make("dlrm", 7), make("ads", 9), make("dlrm", 2), make("dlrm", 5)};
    int64_t active = -1, digits = -1;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(hps_models_add(models, all[i]), HPS_OK);
    }
    assert_int_equal(pin_all(models, "dlrm", 4, &active, &digits), 3);
    assert_int_equal(active, 0);
    assert_int_equal(digits, 257);
    assert_int_equal(hps_models_activate(models, "dlrm", 5), HPS_OK);
    assert_int_equal(pin_all(models, "dlrm", 3, &active, &digits), 3);
    assert_int_equal(active, 5);
    assert_int_equal(digits, 257);
    /* The array is too small: no version is pinned, which drop asserts. */
    assert_int_equal(pin_all(models, "dlrm", 2, &active, &digits), 3);
    assert_int_equal(pin_all(models, "dl", 4, &active, &digits), 0);
    for (unsigned i = 0; i < 4; i++) {
        drop(models, all[i]);
    }
    hps_models_free(models);
}

struct seen {
    unsigned n;
    unsigned n_max;
    unsigned n_of[3]; /* dlrm, ads, new */
};

static bool see(void *ctx, const char *model)
{
    static const char *const names[3] = {"dlrm", "ads", "new"};
    struct seen *seen = ctx;
    for (unsigned i = 0; i < 3; i++) {
        seen->n_of[i] += strcmp(model, names[i]) == 0;
    }
    return ++seen->n < seen->n_max;
}

static void test_names_when_a_model_has_several_versions_then_once_until_the_callback_stops(
    void **state)
{
    (void)state;
    struct hps_models *models = hps_models_new();
    struct hps_version *all[] = {make("dlrm", 7), make("ads", 9), make("dlrm", 2), make("new", 1)};
    struct seen seen = {.n_max = 9};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(hps_models_add(models, all[i]), HPS_OK);
    }
    hps_models_names(models, see, &seen);
    assert_int_equal(seen.n, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(seen.n_of[i], 1);
    }
    seen = (struct seen){.n_max = 2};
    hps_models_names(models, see, &seen);
    assert_int_equal(seen.n, 2);
    for (unsigned i = 0; i < 4; i++) {
        drop(models, all[i]);
    }
    hps_models_free(models);
}

static void expect_table(struct hps_models *models, uint32_t place, uint32_t n, const char *name)
{
    char got[8];
    assert_int_equal(hps_models_table_at(models, "m", place, got, sizeof(got)), n);
    assert_string_equal(got, name);
}

static void test_order_when_it_grows_or_is_removed_then_places_have_its_names(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "a_long_name"};
    struct hps_models *models = hps_models_new();
    expect_table(models, 0, 0, "");
    assert_int_equal(hps_models_set_order(models, "other", names, 1), HPS_OK);
    for (uint32_t n = 2; n <= 3; n++) {
        assert_int_equal(hps_models_set_order(models, "m", names, n), HPS_OK);
        expect_table(models, 1, n, "b");
        expect_table(models, n, n, "");
    }
    expect_table(models, 2, 3, "a_long_");
    assert_int_equal(hps_models_set_order(models, "m", NULL, 0), HPS_OK);
    expect_table(models, 0, 0, "");
    hps_models_free(models);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pin_when_there_are_many_models_then_each_has_its_versions),
        cmocka_unit_test(test_pin_when_active_switches_then_follows),
        cmocka_unit_test(test_pin_when_a_model_is_expected_then_unavailable_with_the_reason),
        cmocka_unit_test(test_pin_when_an_expected_model_becomes_active_then_never_not_found),
        cmocka_unit_test(test_pin_when_unknown_then_error_names_it),
        cmocka_unit_test(test_pin_when_by_label_then_the_highest_number_with_it),
        cmocka_unit_test(test_names_when_a_nul_follows_a_known_one_then_unknown),
        cmocka_unit_test(test_pin_all_when_there_are_several_versions_then_all_in_order_or_none),
        cmocka_unit_test(
            test_names_when_a_model_has_several_versions_then_once_until_the_callback_stops),
        cmocka_unit_test(test_order_when_it_grows_or_is_removed_then_places_have_its_names),
        cmocka_unit_test(test_remove_when_readers_pin_then_never_freed_under_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
