/* SPDX-License-Identifier: Apache-2.0
 *
 * Suggestions: typos find their word, strangers find none.
 */
#include "base/suggest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *suggest(const char *name)
{
    static const char *const words[] = {"config", "listen", "http-listen", "table", "top", NULL};
    struct hps_suggestion best = {0};

    for (const char *const *word = words; *word != NULL; word++) {
        hps_suggest(&best, name, *word);
    }
    return best.text;
}

static void test_suggest_when_misspelt_then_the_word(void **state)
{
    static const struct {
        const char *name;
        const char *meant;
    } cases[] = {
        {"tabel", "table"},  {"TABLE", "table"}, {"tables", "table"}, {"lisetn", "listen"},
        {"confg", "config"}, {"conf", "config"}, {"tpo", "top"},      {"http-lsten", "http-listen"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *meant = suggest(cases[i].name);
        assert_non_null(meant);
        assert_string_equal(meant, cases[i].meant);
    }
}

static void test_suggest_when_strange_then_none(void **state)
{
    char name[200];

    (void)state;
    memset(name, 't', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_null(suggest(""));
    assert_null(suggest("x"));
    assert_null(suggest("colour"));
    assert_null(suggest(name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suggest_when_misspelt_then_the_word),
        cmocka_unit_test(test_suggest_when_strange_then_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
