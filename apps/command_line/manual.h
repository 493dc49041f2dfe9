// Manual pages (section 1) out of what a program knows of its commands and flags, so that a page never lacks a new flag.
// The build writes them, `cmake --install` installs them.
#pragma once

#include <cachalot/result.h>

#include <string>

namespace CLI {
class App;
}

namespace cachalot::apps {

// Writes into `folder` a page for each command that this program itself runs: cachalot-pool-create.1; and one for the
// whole, cachalot.1, which a companion with commands does not have.
// @param version  at the foot of each page
// @errors kIo: a file cannot be written
Status write_manual(const CLI::App& app, const std::string& version, const std::string& folder);

}  // namespace cachalot::apps
