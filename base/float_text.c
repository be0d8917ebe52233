/* SPDX-License-Identifier: Apache-2.0
 *
 * See base/float_text.h.
 *
 * source  Giulietti, "The Schubfach way to render doubles", 2021, for float32: of a value between
 *         its neighbours, scaled by a power of ten so that between them there are one to ten
 *         integers, and at most one multiple of ten.
 */
#include "base/float_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/half.h"

enum { FRACTION_BITS = 23, EXPONENT_MIN = -149, POWER_MIN = -31, POWER_MAX = 45 };

/* 10^i, i from POWER_MIN on: its first 64 bits, rounded up. */
static const uint64_t powers[POWER_MAX - POWER_MIN + 1] = {
    0x81ceb32c4b43fcf5, 0xa2425ff75e14fc32, 0xcad2f7f5359a3b3f, 0xfd87b5f28300ca0e,
    0x9e74d1b791e07e49, 0xc612062576589ddb, 0xf79687aed3eec552, 0x9abe14cd44753b53,
    0xc16d9a0095928a28, 0xf1c90080baf72cb2, 0x971da05074da7bef, 0xbce5086492111aeb,
    0xec1e4a7db69561a6, 0x9392ee8e921d5d08, 0xb877aa3236a4b44a, 0xe69594bec44de15c,
    0x901d7cf73ab0acda, 0xb424dc35095cd810, 0xe12e13424bb40e14, 0x8cbccc096f5088cc,
    0xafebff0bcb24aaff, 0xdbe6fecebdedd5bf, 0x89705f4136b4a598, 0xabcc77118461cefd,
    0xd6bf94d5e57a42bd, 0x8637bd05af6c69b6, 0xa7c5ac471b478424, 0xd1b71758e219652c,
    0x83126e978d4fdf3c, 0xa3d70a3d70a3d70b, 0xcccccccccccccccd, 0x8000000000000000,
    0xa000000000000000, 0xc800000000000000, 0xfa00000000000000, 0x9c40000000000000,
    0xc350000000000000, 0xf424000000000000, 0x9896800000000000, 0xbebc200000000000,
    0xee6b280000000000, 0x9502f90000000000, 0xba43b74000000000, 0xe8d4a51000000000,
    0x9184e72a00000000, 0xb5e620f480000000, 0xe35fa931a0000000, 0x8e1bc9bf04000000,
    0xb1a2bc2ec5000000, 0xde0b6b3a76400000, 0x8ac7230489e80000, 0xad78ebc5ac620000,
    0xd8d726b7177a8000, 0x878678326eac9000, 0xa968163f0a57b400, 0xd3c21bcecceda100,
    0x84595161401484a0, 0xa56fa5b99019a5c8, 0xcecb8f27f4200f3a, 0x813f3978f8940985,
    0xa18f07d736b90be6, 0xc9f2c9cd04674edf, 0xfc6f7c4045812297, 0x9dc5ada82b70b59e,
    0xc5371912364ce306, 0xf684df56c3e01bc7, 0x9a130b963a6c115d, 0xc097ce7bc90715b4,
    0xf0bdc21abb48db21, 0x96769950b50d88f5, 0xbc143fa4e250eb32, 0xeb194f8e1ae525fe,
    0x92efd1b8d0cf37bf, 0xb7abc627050305ae, 0xe596b7b0c643c71a, 0x8f7e32ce7bea5c70,
    0xb35dbf821ae4f38c,
};

/* digits * 10^exponent */
struct decimal {
    uint32_t digits;
    int exponent;
};

/* floor(log10(2^q)), of 3/4 of it where the neighbour below is nearer; floor(log2(10^k)). Exact for
 * |q| <= 160, |k| <= 60. */
static int log10_of_pow2(int q, bool nearer)
{
    return (q * 1262611 - (nearer ? 524031 : 0)) >> 22;
}

static int log2_of_pow10(int k)
{
    return (k * 1741647) >> 19;
}

/* x * power / 2^64; its last bit also tells that there is something behind it. Where that is less
 * than the power was rounded by, it is nothing. */
static uint32_t scale(uint64_t power, uint32_t x)
{
    unsigned __int128 product = (unsigned __int128)power * x;
    uint32_t whole = (uint32_t)(product >> 64);
    uint32_t rest = (uint32_t)(product >> 32);

    return whole | (rest > 1 ? 1 : 0);
}

/* The decimal of c * 2^q; c > 0. */
static struct decimal shortest(uint32_t c, int q)
{
    bool nearer = c == UINT32_C(1) << FRACTION_BITS && q > EXPONENT_MIN;
    int k = log10_of_pow2(q, nearer);
    int shift = q + log2_of_pow10(-k) + 1;
    uint64_t power = powers[-k - POWER_MIN];

    HPS_ASSERT(-k >= POWER_MIN && -k <= POWER_MAX && shift >= 0 && shift <= 4);
    /* Four times the value, and the middles between it and its neighbours, which only an even c
     * reads back from. */
    uint32_t odd = c & 1;
    uint32_t value = scale(power, (4 * c) << shift);
    uint32_t low = scale(power, (4 * c - (nearer ? 1 : 2)) << shift) + odd;
    uint32_t high = scale(power, (4 * c + 2) << shift) - odd;

    uint32_t whole = value / 4;
    uint32_t tens = whole / 10;
    bool tens_below = low <= 40 * tens;
    bool tens_above = 40 * tens + 40 <= high;
    if (whole >= 10 && tens_below != tens_above) {
        return (struct decimal){tens + (tens_above ? 1 : 0), k + 1};
    }
    bool below = low <= 4 * whole;
    bool above = 4 * whole + 4 <= high;
    if (below != above) {
        return (struct decimal){whole + (above ? 1 : 0), k};
    }
    uint32_t middle = 4 * whole + 2;
    bool up = value > middle || (value == middle && (whole & 1) != 0);
    return (struct decimal){whole + (up ? 1 : 0), k};
}

static size_t put_zeros(char *out, int n)
{
    memset(out, '0', (size_t)n);
    return (size_t)n;
}

/* `digits`, n of them, with a point behind the first n_whole. */
static size_t put_digits(char *out, const char *digits, size_t n, size_t n_whole)
{
    memcpy(out, digits, n_whole);
    if (n_whole == n) {
        return n;
    }
    out[n_whole] = '.';
    memcpy(out + n_whole + 1, digits + n_whole, n - n_whole);
    return n + 1;
}

static size_t put_exponent(char *out, int exponent)
{
    char *at = out;

    *at++ = 'e';
    if (exponent < 0) {
        *at++ = '-';
        exponent = -exponent;
    }
    if (exponent >= 10) {
        *at++ = (char)('0' + exponent / 10);
    }
    *at++ = (char)('0' + exponent % 10);
    return (size_t)(at - out);
}

static size_t put_decimal(char *out, struct decimal decimal)
{
    char digits[10];
    size_t first = sizeof(digits);
    size_t at = 0;

    while (decimal.digits % 10 == 0) {
        decimal.digits /= 10;
        decimal.exponent++;
    }
    for (uint32_t rest = decimal.digits; rest > 0; rest /= 10) {
        digits[--first] = (char)('0' + rest % 10);
    }
    size_t n = sizeof(digits) - first;
    int point = (int)n + decimal.exponent; /* the value is 0.digits * 10^point */

    if (decimal.exponent >= 0 && point <= 10) {
        at = put_digits(out, digits + first, n, n);
        return at + put_zeros(out + at, decimal.exponent);
    }
    if (point > 0 && decimal.exponent < 0) {
        return put_digits(out, digits + first, n, (size_t)point);
    }
    if (point <= 0 && point >= -3) {
        out[0] = '0';
        out[1] = '.';
        at = 2 + put_zeros(out + 2, -point);
        return at + put_digits(out + at, digits + first, n, n);
    }
    at = put_digits(out, digits + first, n, 1);
    return at + put_exponent(out + at, point - 1);
}

size_t hps_float_text(float value, char out_text[HPS_FLOAT_TEXT_BYTES])
{
    uint32_t bits = hps_bits_of_float(value);
    uint32_t fraction = bits & ((UINT32_C(1) << FRACTION_BITS) - 1);
    uint32_t exponent = bits >> FRACTION_BITS & 0xff;
    size_t at = 0;

    HPS_ASSERT(exponent != 0xff);
    if (bits >> 31 != 0) {
        out_text[at++] = '-';
    }
    if (exponent == 0 && fraction == 0) {
        static const char zero[] = "-0.0"; /* the sign is there */
        memcpy(out_text, at == 0 ? "0" : zero, at == 0 ? 1 : sizeof(zero) - 1);
        return at == 0 ? 1 : sizeof(zero) - 1;
    }
    struct decimal decimal = exponent == 0 ? shortest(fraction, EXPONENT_MIN)
                                           : shortest(fraction | UINT32_C(1) << FRACTION_BITS,
                                                      (int)exponent + EXPONENT_MIN - 1);
    at += put_decimal(out_text + at, decimal);
    HPS_ASSERT(at <= HPS_FLOAT_TEXT_BYTES);
    return at;
}
