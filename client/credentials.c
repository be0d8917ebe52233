/* SPDX-License-Identifier: Apache-2.0
 *
 * A token and certificates, read from their files. See client/credentials.h.
 */
#include "client/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "net/tls.h"

/* First line of the file, in `token[HPS_CLIENT_TOKEN_BYTES_MAX]`. */
static hps_status token_read(const char *path, char *token, struct hps_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        hps_status status = errno == ENOENT   ? HPS_NOT_FOUND
                            : errno == EACCES ? HPS_PERMISSION
                                              : HPS_IO;
        return hps_error_set(err, status, "token file %s: %s", path, strerror(errno));
    }
    ssize_t n;
    do {
        n = read(fd, token, HPS_CLIENT_TOKEN_BYTES_MAX);
    } while (n < 0 && errno == EINTR);
    int read_errno = errno;
    close(fd);
    if (n < 0) {
        return hps_error_set(err, HPS_IO, "token file %s: %s", path, strerror(read_errno));
    }
    size_t size = 0;
    while (size < (size_t)n && token[size] > ' ' && token[size] <= '~') {
        size++;
    }
    if (size == 0 || size == HPS_CLIENT_TOKEN_BYTES_MAX ||
        (size < (size_t)n && token[size] != '\n' && token[size] != '\r')) {
        return hps_error_set(err, HPS_INVALID,
                             "token file %s: expected one line of 1 to %d printable characters "
                             "without spaces",
                             path, HPS_CLIENT_TOKEN_BYTES_MAX - 1);
    }
    token[size] = '\0';
    return HPS_OK;
}

static hps_status tls_open(const struct hps_client_options *options, bool http1,
                           struct hps_tls **out_tls, struct hps_error *err)
{
    if (!options->tls && options->tls_ca == NULL && options->tls_cert == NULL &&
        options->tls_key == NULL) {
        *out_tls = NULL;
        return HPS_OK;
    }
    if (options->tls_cert == NULL && options->tls_key != NULL) {
        return hps_error_set(err, HPS_INVALID, "a TLS key without its certificate");
    }
    struct hps_tls_options tls = {
        .cert_file = options->tls_cert,
        .key_file = options->tls_key,
        .ca_file = options->tls_ca,
        .any_protocol = http1,
    };
    return hps_tls_new(&tls, out_tls, err);
}

hps_status hps_client_credentials_open(const struct hps_client_options *options, bool http1,
                                       struct hps_client_credentials *out_credentials,
                                       struct hps_error *err)
{
    struct hps_client_credentials credentials = {0};
    hps_status status = options->token_file != NULL
                            ? token_read(options->token_file, credentials.token, err)
                            : HPS_OK;

    if (status == HPS_OK) {
        status = tls_open(options, http1, &credentials.tls, err);
    }
    /* A Unix socket has no TLS: options for a program's other address are not for it. */
    if (status == HPS_OK && strncmp(options->address, "unix:", 5) == 0) {
        hps_client_credentials_close(&credentials);
    }
    if (status == HPS_OK) {
        *out_credentials = credentials;
    }
    return status;
}

void hps_client_credentials_close(struct hps_client_credentials *credentials)
{
    hps_tls_unref(credentials->tls);
    credentials->tls = NULL;
}
