/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the rows of keys: lookup ADDRESS[,ADDRESS...] MODEL TABLE KEY...
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <hpsd.h>

enum { KEYS_MAX = 100 };

int main(int argc, char **argv)
{
    int64_t keys[KEYS_MAX];
    uint8_t key_status[KEYS_MAX];
    struct hpsd_query query = {.keys = keys, .key_status = key_status};
    struct hpsd_result result;
    struct hpsd_lookup lookup = {
        .queries = &query, .n_queries = 1, .results = &result, .timeout_us = 1000000};
    struct hpsd_client *client = NULL;
    struct hpsd_reply reply;
    struct hpsd_error error;

    if (argc < 5 || argc - 4 > KEYS_MAX) {
        fprintf(stderr, "usage: lookup ADDRESS[,ADDRESS...] MODEL TABLE KEY...\n");
        return 2;
    }
    lookup.model = argv[2];
    query.table = argv[3];
    for (int i = 4; i < argc; i++) {
        keys[query.n_keys++] = strtoll(argv[i], NULL, 10);
    }
    if (hpsd_open(&(struct hpsd_options){.addresses = argv[1]}, &client, &error) != HPSD_OK ||
        hpsd_lookup(client, &lookup, &reply, &error) != HPSD_OK) {
        fprintf(stderr, "lookup: %s: %s\n", hpsd_status_text(error.status), error.text);
        hpsd_close(client);
        return 1;
    }
    for (size_t row = 0; row < result.n_rows; row++) {
        const float *values = (const float *)((char *)result.rows + row * result.stride);
        printf("%" PRId64 "%s", keys[row], key_status[row] == HPSD_KEY_FOUND ? "" : " (default)");
        for (uint32_t i = 0; i < result.dim; i++) {
            printf(" %g", (double)values[i]);
        }
        printf("\n");
    }
    hpsd_free(reply.memory);
    hpsd_close(client);
    return 0;
}
