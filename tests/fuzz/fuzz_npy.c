/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the beginning of a .npy file. A header that is accepted describes data that can
 * exist, and is written and read back the same.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/rows/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t header[HPS_NPY_HEADER_BYTES];
    struct hps_npy npy = {0};
    struct hps_npy again = {0};
    struct hps_error err = {0};

    hps_status status = hps_npy_parse(data, size, &npy, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(status == HPS_INVALID && err.text[0] != '\0');
        return 0;
    }
    HPS_ASSERT(npy.n_dims == 1 || npy.n_dims == 2);
    HPS_ASSERT(npy.data_offset <= size);
    HPS_ASSERT(npy.data_bytes <= (uint64_t)INT64_MAX - npy.data_offset);
    hps_npy_format(&npy, header);
    status = hps_npy_parse(header, sizeof(header), &again, &err);
    /* Our header may be longer than the one read: only then can the sum pass 2^63. */
    if (status == HPS_OK) {
        HPS_ASSERT(again.type == npy.type && again.n_dims == npy.n_dims);
        HPS_ASSERT(memcmp(again.shape, npy.shape, sizeof(npy.shape)) == 0);
        HPS_ASSERT(again.data_bytes == npy.data_bytes);
    } else {
        HPS_ASSERT(npy.data_offset < HPS_NPY_HEADER_BYTES);
    }
    return 0;
}
