/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificates for tests, made at run time by the openssl program in a temporary directory, so that
 * none expires in the repository.
 */
#ifndef HPS_TESTS_LIB_CERTS_H
#define HPS_TESTS_LIB_CERTS_H

#include "tests/lib/tmpdir.h"

#define HPS_CERTS_PATH_MAX 256

struct hps_certs {
    struct hps_tmpdir own;
    char dir[HPS_CERTS_PATH_MAX];
    char ca[HPS_CERTS_PATH_MAX];
    char server_cert[HPS_CERTS_PATH_MAX]; /* CN=server, DNS:localhost, IP:127.0.0.1 and ::1 */
    char server_key[HPS_CERTS_PATH_MAX];
    char client_cert[HPS_CERTS_PATH_MAX]; /* CN=trainer, no SAN */
    char client_key[HPS_CERTS_PATH_MAX];
    char crl_none[HPS_CERTS_PATH_MAX]; /* of the CA: nothing is revoked */
    char crl[HPS_CERTS_PATH_MAX];      /* ... the client's certificate is */
    char rogue_ca[HPS_CERTS_PATH_MAX]; /* another CA, and a server certificate by it */
    char rogue_cert[HPS_CERTS_PATH_MAX];
    char rogue_key[HPS_CERTS_PATH_MAX];
};

/* Fails the test if the openssl program does not work. */
void hps_certs_make(struct hps_certs *out_certs);
void hps_certs_remove(struct hps_certs *certs);
/* Replace the file `to` by a copy of `from`. */
void hps_certs_copy(const char *from, const char *to);

#endif
