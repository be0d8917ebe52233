/* SPDX-License-Identifier: Apache-2.0
 *
 * The file with the one token of administrators. Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "net/tls.h"
#include "server/access/rules.h"

enum { TOKEN_BYTES_MAX = 4096 };

hps_status access_token_file_read(const char *path, uint8_t out_sha256[32], struct hps_error *err)
{
    char token[TOKEN_BYTES_MAX];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return hps_error_set(err, HPS_NOT_FOUND, "server.admin_token_file: cannot read \"%s\": %m",
                             path);
    }
    size_t size = fread(token, 1, sizeof(token), file);
    fclose(file);
    while (size > 0 && (token[size - 1] == '\n' || token[size - 1] == '\r')) {
        size--;
    }
    if (size == 0 || size == sizeof(token)) {
        return hps_error_set(err, HPS_INVALID, "server.admin_token_file: \"%s\" has %s", path,
                             size == 0 ? "no token" : "4096 bytes or more");
    }
    HPS_ASSERT(size < sizeof(token));
    hps_status status = hps_tls_sha256(token, size, out_sha256);
    explicit_bzero(token, sizeof(token));
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "server.admin_token_file: no memory");
}
