/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes certificates with the openssl program (fork and exec).
 */
#include "tests/lib/certs.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char config_text[] =
    "[req]\ndistinguished_name=dn\n[dn]\n"
    "[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"
    "subjectKeyIdentifier=hash\n"
    "[server]\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n"
    "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\n"
    "[client]\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=clientAuth\n"
    "[crl]\ndefault_md=sha256\ndefault_crl_days=2\ndatabase=";

static void run(char *const argv[])
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("%s %s: status %d", argv[0], argv[1], status);
    }
}

static void path_of(const struct hps_certs *certs, const char *name, char out[HPS_CERTS_PATH_MAX])
{
    int size = snprintf(out, HPS_CERTS_PATH_MAX, "%.200s/%s", certs->dir, name);
    assert_true(size > 0 && size < HPS_CERTS_PATH_MAX);
}

/* Make a self-signed certificate, or one that `ca` signs with the key in the file next to it. */
static void make_one(const struct hps_certs *certs, const char *section, const char *subject,
                     const char *ca, const char *cert, const char *key)
{
    char config[HPS_CERTS_PATH_MAX];
    char ca_key[HPS_CERTS_PATH_MAX + 8];
    path_of(certs, "openssl.cnf", config);
    snprintf(ca_key, sizeof(ca_key), "%s.key", ca ? ca : "");
    const char *argv[32] = {
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-config",
        config,
        "-days",
        "2",
        "-subj",
        subject,
        "-extensions",
        section,
        "-keyout",
        key,
        "-out",
        cert,
    };
    if (ca) {
        argv[20] = "-CA";
        argv[21] = ca;
        argv[22] = "-CAkey";
        argv[23] = ca_key;
    }
    run((char *const *)(uintptr_t)argv);
}

/* Make a CRL of the first CA that also revokes `revoked` (NULL: no further certificate). */
static void make_crl(const struct hps_certs *certs, const char *revoked, const char *crl)
{
    char config[HPS_CERTS_PATH_MAX];
    char key[HPS_CERTS_PATH_MAX];
    path_of(certs, "openssl.cnf", config);
    path_of(certs, "ca.pem.key", key);
    const char *argv[] = {"openssl", "ca",       "-config", config,    "-name", "crl", "-cert",
                          certs->ca, "-keyfile", key,       "-gencrl", "-out",  crl,   NULL};
    const char *revoke[] = {"openssl", "ca",       "-config", config,    "-name", "crl", "-cert",
                            certs->ca, "-keyfile", key,       "-revoke", revoked, NULL};
    if (revoked) {
        run((char *const *)(uintptr_t)revoke);
    }
    run((char *const *)(uintptr_t)argv);
}

void hps_certs_make(struct hps_certs *out_certs)
{
    struct hps_certs *certs = out_certs;
    char key[HPS_CERTS_PATH_MAX];
    char config[HPS_CERTS_PATH_MAX];
    hps_tmpdir_open(&certs->own);
    snprintf(certs->dir, sizeof(certs->dir), "%.200s", certs->own.path);
    path_of(certs, "ca.pem", certs->ca);
    path_of(certs, "server.pem", certs->server_cert);
    path_of(certs, "server.key", certs->server_key);
    path_of(certs, "client.pem", certs->client_cert);
    path_of(certs, "client.key", certs->client_key);
    path_of(certs, "rogue-ca.pem", certs->rogue_ca);
    path_of(certs, "rogue.pem", certs->rogue_cert);
    path_of(certs, "rogue.key", certs->rogue_key);
    path_of(certs, "openssl.cnf", config);
    FILE *file = fopen(config, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "%s%s/index.txt\n", config_text, certs->dir) >= 0);
    assert_int_equal(fclose(file), 0);
    hps_tmpdir_write(&certs->own, "index.txt", "", 0);
    path_of(certs, "ca.pem.key", key);
    make_one(certs, "ca", "/CN=hpsd test CA", NULL, certs->ca, key);
    make_one(certs, "server", "/CN=server", certs->ca, certs->server_cert, certs->server_key);
    make_one(certs, "client", "/CN=trainer", certs->ca, certs->client_cert, certs->client_key);
    path_of(certs, "crl-none.pem", certs->crl_none);
    path_of(certs, "crl.pem", certs->crl);
    make_crl(certs, NULL, certs->crl_none);
    make_crl(certs, certs->client_cert, certs->crl);
    path_of(certs, "rogue-ca.pem.key", key);
    make_one(certs, "ca", "/CN=rogue CA", NULL, certs->rogue_ca, key);
    make_one(certs, "server", "/CN=server", certs->rogue_ca, certs->rogue_cert, certs->rogue_key);
}

void hps_certs_remove(struct hps_certs *certs)
{
    hps_tmpdir_close(&certs->own);
}

void hps_certs_copy(const char *from, const char *to)
{
    char bytes[65536];
    FILE *in = fopen(from, "r");
    FILE *out = fopen(to, "w");
    assert_non_null(in);
    assert_non_null(out);
    size_t size = fread(bytes, 1, sizeof(bytes), in);
    assert_true(feof(in));
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(in), 0);
    assert_int_equal(fclose(out), 0);
}
