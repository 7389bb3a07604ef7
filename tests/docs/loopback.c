/* A loopback of its own for every page of the documentation: for LD_PRELOAD.

   Pages name the default ports, which may be taken by anybody on this machine. All of 127.0.0.0/8 is
   this machine, so what a page's processes call 127.0.0.1 (or 0.0.0.0) is the address $LOOPBACK to
   everybody else. Only TCP over IPv4 is meant, also where it is said in IPv6, as Java does. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static in_addr_t own;

__attribute__((constructor)) static void read_own(void)
{
    const char *text = getenv("LOOPBACK");
    if (!text || inet_pton(AF_INET, text, &own) != 1)
        own = 0;
}

/* Where the IPv4 address stands; nowhere, where there is none. */
static in_addr_t *place(struct sockaddr_storage *address, socklen_t size)
{
    if (address->ss_family == AF_INET && size >= sizeof(struct sockaddr_in))
        return &((struct sockaddr_in *)address)->sin_addr.s_addr;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET6 && size >= sizeof *six && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return (in_addr_t *)&six->sin6_addr.s6_addr[12];
    return NULL;
}

static int is_tcp(int socket)
{
    int kind = 0;
    socklen_t size = sizeof kind;
    return !getsockopt(socket, SOL_SOCKET, SO_TYPE, &kind, &size) && kind == SOCK_STREAM;
}

typedef int (*naming)(int, const struct sockaddr *, socklen_t);
typedef int (*asking)(int, struct sockaddr *, socklen_t *);

static int name_own(naming call, int socket, const struct sockaddr *given, socklen_t size)
{
    struct sockaddr_storage address = {0};
    if (!own || !given || size > sizeof address || !is_tcp(socket))
        return call(socket, given, size);
    memcpy(&address, given, size);
    in_addr_t *ip = place(&address, size);
    if (ip && (*ip == htonl(INADDR_LOOPBACK) || *ip == htonl(INADDR_ANY)))
        *ip = own;
    return call(socket, (struct sockaddr *)&address, size);
}

static int ask_common(asking call, int socket, struct sockaddr *address, socklen_t *size)
{
    int result = call(socket, address, size);
    if (!result && own && *size <= sizeof(struct sockaddr_storage)) {
        in_addr_t *ip = place((struct sockaddr_storage *)address, *size);
        if (ip && *ip == own)
            *ip = htonl(INADDR_LOOPBACK);
    }
    return result;
}

int bind(int socket, const struct sockaddr *address, socklen_t size)
{
    return name_own((naming)dlsym(RTLD_NEXT, "bind"), socket, address, size);
}

int connect(int socket, const struct sockaddr *address, socklen_t size)
{
    return name_own((naming)dlsym(RTLD_NEXT, "connect"), socket, address, size);
}

int getsockname(int socket, struct sockaddr *restrict address, socklen_t *restrict size)
{
    return ask_common((asking)dlsym(RTLD_NEXT, "getsockname"), socket, address, size);
}

int getpeername(int socket, struct sockaddr *restrict address, socklen_t *restrict size)
{
    return ask_common((asking)dlsym(RTLD_NEXT, "getpeername"), socket, address, size);
}
