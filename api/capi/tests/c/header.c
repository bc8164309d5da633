/* The header alone, and the layout that the library expects. */
#include <towpath.h>

_Static_assert(sizeof(struct towpath_options) == 72, "struct StackOptions of options.rs");
_Static_assert(offsetof(struct towpath_options, capture) == 48, "struct StackOptions of options.rs");
_Static_assert(offsetof(struct towpath_options, mtu) == 56, "struct StackOptions of options.rs");
_Static_assert(offsetof(struct towpath_options, linger_ms) == 64, "struct StackOptions of options.rs");
_Static_assert(sizeof(struct towpath_published) == 144, "struct PublishedAddress of options.rs");
_Static_assert(offsetof(struct towpath_published, port) == 132, "struct PublishedAddress");
_Static_assert(offsetof(struct towpath_published, protocol) == 136, "struct PublishedAddress");

int main(void)
{
    return 0;
}
