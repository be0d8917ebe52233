/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the header of a safetensors file, behind 8 bytes: how much data the file has. The
 * tensors of an accepted header lie in the file without gaps, have the sizes of their shapes, and
 * are found by their names.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tensor(const struct hps_safetensors *set, const struct hps_tensor *tensor,
                         uint64_t file_bytes)
{
    const struct hps_npy *array = &tensor->array;
    uint64_t bytes = hps_npy_type_bytes(array->type);

    HPS_ASSERT(hps_safetensors_find(set, tensor->name) == tensor);
    HPS_ASSERT(array->data_offset + array->data_bytes <= file_bytes);
    if (tensor->readable) {
        HPS_ASSERT(array->n_dims == 1 || array->n_dims == 2);
        for (uint32_t i = 0; i < array->n_dims && bytes != 0; i++) {
            HPS_ASSERT(!__builtin_mul_overflow(bytes, array->shape[i], &bytes) ||
                       array->data_bytes == 0);
        }
        HPS_ASSERT(array->data_bytes == 0 || bytes == array->data_bytes);
    }
    HPS_ASSERT(!hps_tensor_is_table(tensor) || tensor->readable);
    (void)hps_safetensors_is_companion(set, tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_safetensors set = {0};
    struct hps_error err = {0};
    uint64_t data_bytes, sum = 0;

    if (size < sizeof(data_bytes)) {
        return 0;
    }
    memcpy(&data_bytes, data, sizeof(data_bytes));
    data_bytes >>= 2; /* file sizes are signed */
    size -= sizeof(data_bytes);
    char *head = hps_alloc(size + 1);
    if (head == NULL) {
        return 0;
    }
    memcpy(head, data + sizeof(data_bytes), size);
    uint64_t file_bytes = HPS_SAFETENSORS_PREFIX_BYTES + size + data_bytes;
    hps_status status = hps_safetensors_parse(head, size, file_bytes, &set, &err);
    if (status != HPS_OK) {
        HPS_ASSERT((status == HPS_INVALID || status == HPS_NO_MEMORY) && err.text[0] != '\0');
        return 0;
    }
    for (size_t i = 0; i < set.n_tensors; i++) {
        check_tensor(&set, &set.tensors[i], file_bytes);
        sum += set.tensors[i].array.data_bytes;
    }
    HPS_ASSERT(sum == data_bytes);
    hps_safetensors_close(&set);
    return 0;
}
