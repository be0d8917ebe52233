/* SPDX-License-Identifier: Apache-2.0
 *
 * Any text as address. If it is accepted, it must be printed to a text that is parsed to the same
 * address. If it is refused, the error must have a text.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "net/addr.h"
#include "tests/fuzz/script.h"

static void check_sockaddr(const uint8_t *data, size_t size)
{
    struct sockaddr_storage storage = {0};
    char text[HPS_ADDR_TEXT_MAX];
    socklen_t used = (socklen_t)(size < sizeof(storage) ? size : sizeof(storage));

    memcpy(&storage, data, used);
    (void)hps_addr_print_sockaddr((const struct sockaddr *)&storage, used, text, sizeof(text));
    HPS_ASSERT(memchr(text, '\0', sizeof(text)) != NULL);
}

static void check_again(const struct hps_addr *addr)
{
    char text[HPS_ADDR_TEXT_MAX];
    struct hps_addr again;
    struct hps_places places;

    (void)hps_addr_print(addr, text, sizeof(text));
    HPS_ASSERT(hps_addr_parse(text, &again, NULL) == HPS_OK);
    HPS_ASSERT(again.is_unix == addr->is_unix && again.port == addr->port);
    HPS_ASSERT(strcmp(again.host, addr->host) == 0 && strcmp(again.path, addr->path) == 0);
    if (!hps_addr_is_name(addr)) { /* else a resolver would be queried */
        hps_status status = hps_addr_resolve(addr, true, &places, NULL);
        HPS_ASSERT(status != HPS_OK || (places.n > 0 && places.n <= HPS_PLACES_MAX));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = hps_strndup(size > 0 ? (const char *)data : "", size);
    struct hps_addr addr;
    struct hps_error err = {0};

    if (text == NULL) {
        return 0;
    }
    hps_status status = hps_addr_parse(text, &addr, &err);
    HPS_ASSERT(status == HPS_OK || (status == HPS_INVALID && err.text[0] != '\0'));
    if (status == HPS_OK) {
        check_again(&addr);
    }
    check_sockaddr(data, size);
    hps_free(text);
    return 0;
}
