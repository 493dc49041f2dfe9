// Where a storage is, as text (base/uri.h).
#pragma once

#include "base/uri.h"

namespace cachalot::storage {

using StorageUri = base::Uri;
using base::decode_percent;
using base::encode_percent;

}  // namespace cachalot::storage
