// Where Buffers lie. A model has thousands of matrices under 2 MB and every step reads them all: on 4 KiB pages its
// time goes into TLB misses (1.5 times on the demo checkpoint under a hypervisor). So small buffers share regions of
// huge pages, cut one after the other; a region is given back with its last buffer. Large buffers have a mapping each,
// whose untouched pages cost nothing. Any thread.
#pragma once

#include <cstdint>

namespace moesaic {

// Zero-filled, 64-byte aligned, num_bytes > 0. Running out of address space is a CHECK.
void* allocate_buffer(int64_t num_bytes);
// `data` and `num_bytes` as allocated.
void release_buffer(void* data, int64_t num_bytes);

}  // namespace moesaic
