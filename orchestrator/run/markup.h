// Text inside HTML and XML (SVG), whatever bytes it has.
#pragma once

#include <string>
#include <string_view>

namespace orrery::run {

// For the content of an element and for the value of an attribute in either kind of quotes; both
// readers see the text as it was: what means something to them becomes a reference, and so do tabs
// and ends of lines, which XML would change in an attribute. Invalid UTF-8 and what XML 1.0 has no
// way to write (section 2.2: other control characters, U+FFFE, U+FFFF) become U+FFFD, one each.
std::string EscapeMarkup(std::string_view text);

}  // namespace orrery::run
