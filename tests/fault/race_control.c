/* SPDX-License-Identifier: Apache-2.0
 *
 * A data race on purpose: one thread copies a row out of a shared buffer with plain memcpy while
 * another writes it. Built for ThreadSanitizer only, which must report it and so make this program
 * fail; if it does not, its silence about the cache's row copies proves nothing.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ROW_BYTES = 512, ROUNDS = 2000 };

static uint8_t shared_row[ROW_BYTES];
static pthread_barrier_t start;

static void *write_rows(void *arg)
{
    (void)arg;
    uint8_t row[ROW_BYTES];
    pthread_barrier_wait(&start);
    for (unsigned i = 0; i < ROUNDS; i++) {
        memset(row, (int)(i & 0xff), sizeof(row));
        memcpy(shared_row, row, sizeof(row));
    }
    return NULL;
}

static void *read_rows(void *arg)
{
    unsigned *sum = arg;
    uint8_t row[ROW_BYTES];
    pthread_barrier_wait(&start);
    for (unsigned i = 0; i < ROUNDS; i++) {
        memcpy(row, shared_row, sizeof(row));
        *sum += row[i % ROW_BYTES];
    }
    return NULL;
}

int main(void)
{
    pthread_t writer;
    pthread_t reader;
    unsigned sum = 0;
    if (pthread_barrier_init(&start, NULL, 2) != 0 ||
        pthread_create(&writer, NULL, write_rows, NULL) != 0 ||
        pthread_create(&reader, NULL, read_rows, &sum) != 0) {
        /* The test expects failure: a program that cannot run must not look like a report. */
        return 0;
    }
    pthread_join(writer, NULL);
    pthread_join(reader, NULL);
    pthread_barrier_destroy(&start);
    printf("sum %u\n", sum);
    return 0;
}
