// Which of a pool's devices are coherent: as operators write it, and as the Domain that accesses them.
//
//   coherent              all of them
//   noncoherent           none
//   coherent,noncoherent  the first is, with all metadata, and the second is not; in a pool that may grow, the second
//                         stands for all devices that are added
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>
#include <string_view>

#include "memory/coherence.h"
#include "memory/pool_view.h"
#include "pool/format/format.h"

namespace cachalot::pool {

// Sets geometry.domain and geometry.noncoherent_devices. Devices and growable count.
// @param  text  one word for all devices, or one for each, with commas
// @errors kInvalidArgument: no such word; more or fewer than devices; the first is not coherent, and another one is
Status set_domains(Geometry& geometry, std::string_view text);

// The same text.
std::string domains_text(const Geometry& geometry);

// How the devices of a view are accessed. @errors kUnsupported: a simulator's
Result<std::unique_ptr<memory::Domain>> make_domain(const Geometry& geometry,
                                                    const memory::PoolView& view, const char* name);

}  // namespace cachalot::pool
