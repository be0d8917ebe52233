/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints docs/config.md: gen-config-doc > docs/config.md. A test compares the committed file.
 */
#include <stdio.h>

#include "base/buf.h"
#include "config/config.h"

enum { DOC_BYTES_MAX = 1024 * 1024 };

int main(void)
{
    struct hps_buf buf;
    hps_buf_init(&buf, DOC_BYTES_MAX);
    hps_status status = hps_config_doc(&buf);
    if (status != HPS_OK || fwrite(buf.data, 1, buf.size, stdout) != buf.size ||
        fflush(stdout) != 0) {
        (void)fprintf(stderr, "gen-config-doc: %s\n",
                      hps_status_text(status == HPS_OK ? HPS_IO : status));
        hps_buf_fini(&buf);
        return 1;
    }
    hps_buf_fini(&buf);
    return 0;
}
