/* SPDX-License-Identifier: Apache-2.0
 *
 * Floats as the shortest texts: those at the edges, and some of the others. That a text reads back
 * was once seen of every finite float that is not negative. One thread.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/float_text.h"
#include "base/half.h"

static const char *text_of(float value)
{
    static char text[HPS_FLOAT_TEXT_BYTES + 1];
    size_t size = hps_float_text(value, text);

    assert_true(size <= HPS_FLOAT_TEXT_BYTES);
    text[size] = '\0';
    return text;
}

static void test_float_when_it_is_known_then_its_text(void **state)
{
    static const struct {
        float value;
        const char *text;
    } cases[] = {
        {0.0F, "0"},
        {-0.0F, "-0.0"},
        {1.0F, "1"},
        {-1.0F, "-1"},
        {10.0F, "10"},
        {0.1F, "0.1"},
        {0.3F, "0.3"},
        {-12.5F, "-12.5"},
        {0x1p24F, "16777216"},
        {1e9F, "1000000000"},
        {1e10F, "1e10"},
        {9.9999998e10F, "1e11"},
        {0.001F, "0.001"},
        {0.0001F, "0.0001"},
        {0.00001F, "1e-5"},
        {-0.00012345678F, "-0.00012345678"},
        {1e-7F, "1e-7"},
        {0x1p-149F, "1e-45"},
        {0x1p-126F, "1.1754944e-38"},
        {-1.17549435e-38F, "-1.1754944e-38"},
        {0x1.fffffep127F, "3.4028235e38"},
        {-0x1.fffffep127F, "-3.4028235e38"},
        {8388608.0F, "8388608"},
        {33554432.0F, "33554432"},
        {0x1p59F, "5.7646075e17"},
        {0x1p-96F, "1.2621775e-29"},
        {0x1p53F, "9.007199e15"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(text_of(cases[i].value), cases[i].text);
    }
}

/* The fewest digits of printf with which a value is read back. */
static int n_digits_of(float value, char *out_text, size_t size)
{
    for (int n = 1; n < 9; n++) {
        (void)snprintf(out_text, size, "%.*e", n - 1, (double)value);
        if (strtof(out_text, NULL) == value) {
            return n;
        }
    }
    (void)snprintf(out_text, size, "%.8e", (double)value);
    return 9;
}

static void check(uint32_t bits)
{
    float value = hps_float_of_bits(bits);
    char shortest[32];
    char again[32];

    if (!isfinite(value)) {
        return;
    }
    const char *text = text_of(value);
    assert_true(hps_bits_of_float(strtof(text, NULL)) == bits);
    int n = n_digits_of(value, shortest, sizeof(shortest));
    (void)snprintf(again, sizeof(again), "%.*e", n - 1, strtod(text, NULL));
    assert_true(strtod(again, NULL) == strtod(text, NULL)); /* it has no more digits */
    (void)snprintf(again, sizeof(again), "%.*e", n > 1 ? n - 2 : 0, strtod(text, NULL));
    if (n > 1 && strtod(again, NULL) == strtod(text, NULL)) {
        return; /* it has fewer: beside a power of two printf's text of as many is another float */
    }
    assert_true(fabs(strtod(text, NULL) - (double)value) <=
                fabs(strtod(shortest, NULL) - (double)value));
}

static void test_float_when_read_back_then_the_same_and_no_shorter_text_is(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 100003) {
        check((uint32_t)bits);
    }
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (uint32_t i = 0; i < 40; i++) { /* beside every power of two */
            check((exponent << 23) + i - 20);
        }
    }
    check(UINT32_C(0x7f7fffff));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_when_it_is_known_then_its_text),
        cmocka_unit_test(test_float_when_read_back_then_the_same_and_no_shorter_text_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
