// SPDX-License-Identifier: Apache-2.0
// Occupies every multiprocessor until the host writes a word (zero_sms.py), for 20 s at most.

extern "C" __global__ void __launch_bounds__(1024)
    fill(const volatile unsigned long long *stop, unsigned long long *running) {
    unsigned long long begin = 0;
    unsigned long long now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    if (threadIdx.x == 0) {
        atomicAdd_system(running, 1ULL);
    }
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*stop == 0 && now - begin < 20000000000ULL);
}
