// SPDX-License-Identifier: Apache-2.0
//! Shards in GPU memory, on a CUDA driver for tests (tests/fakes/cuda), whose folder ODC_RUST_TEST_CUDA names and
//! LD_LIBRARY_PATH leads to.

#![deny(unsafe_op_in_unsafe_fn)]

mod ranks;

use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_void};

use odc::{Bf16, Context, Description, Failed};

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Functions of fake_cuda.h.
#[derive(Clone, Copy)]
struct Driver {
    alloc: unsafe extern "C" fn(device: c_int, bytes: usize) -> u64,
    write: unsafe extern "C" fn(to: u64, from: *const c_void, bytes: usize) -> c_int,
    read: unsafe extern "C" fn(to: *mut c_void, from: u64, bytes: usize) -> c_int,
    stream_create: unsafe extern "C" fn(device: c_int, flags: u32) -> *mut c_void,
    stream_wait: unsafe extern "C" fn(stream: *mut c_void) -> c_int,
    fault: unsafe extern "C" fn(stream: *mut c_void, result: c_int) -> c_int,
}

fn driver() -> Driver {
    let folder = std::env::var("ODC_RUST_TEST_CUDA").expect("ODC_RUST_TEST_CUDA names the CUDA driver for tests");
    let file = CString::new(format!("{}/libcuda.so.1", folder)).unwrap();
    // SAFETY: the functions are fake_cuda.h's.
    unsafe {
        let library = dlopen(file.as_ptr(), 2);
        assert!(!library.is_null(), "{:?} cannot be loaded", file);
        Driver {
            alloc: find(library, "fake_cuda_alloc"),
            write: find(library, "fake_cuda_write"),
            read: find(library, "fake_cuda_read"),
            stream_create: find(library, "fake_cuda_stream_create"),
            stream_wait: find(library, "fake_cuda_stream_wait"),
            fault: find(library, "fake_cuda_fault"),
        }
    }
}

/// # Safety
/// `F` is the function's type.
unsafe fn find<F: Copy>(library: *mut c_void, name: &str) -> F {
    let name = CString::new(name).unwrap();
    // SAFETY: the caller's; functions and pointers are of one size.
    unsafe {
        let found = dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "{:?} is not there", name);
        std::mem::transmute_copy(&found)
    }
}

impl Driver {
    fn write<T: Copy>(&self, to: *mut T, values: &[T]) {
        let bytes = std::mem::size_of_val(values);
        // SAFETY: the caller's memory has room for them, and the driver checks it.
        assert_eq!(unsafe { (self.write)(to as u64, values.as_ptr().cast(), bytes) }, 0);
    }

    fn read<T: Copy + Default>(&self, from: *const T, numel: usize) -> Vec<T> {
        let mut values = vec![T::default(); numel];
        let bytes = std::mem::size_of_val(&values[..]);
        // SAFETY: as in `write`.
        assert_eq!(unsafe { (self.read)(values.as_mut_ptr().cast(), from as u64, bytes) }, 0);
        values
    }
}

/// The test once more, a process for each rank.
fn run(size: i32, test: &str, rank: impl Fn(&mut Context, Driver)) {
    let cuda = driver();
    if let Some((_, config)) = ranks::as_child() {
        return rank(&mut Context::join(config.device("cuda:0")).unwrap(), cuda);
    }
    let job = ranks::new_job();
    let children: Vec<_> = (0..size).map(|rank| ranks::spawn(test, rank, size, &job)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

const ONE: Bf16 = Bf16(0x3f80);

#[test]
#[ignore = "needs the CUDA driver for tests"]
fn gathers_and_sums_on_streams_are_as_on_the_host() {
    run(2, "gathers_and_sums_on_streams_are_as_on_the_host", |context, cuda| {
        let mut owned = context.begin().unwrap();
        let description = Description::new("layer", 1001);
        let mut shard = owned.register_all_on_gpu::<f32, Bf16>(&[description]).unwrap().remove(0);
        let beside = owned.register::<f32, f32>(&Description::new("beside", 10)).unwrap();
        assert!(["shm", "cuda"].contains(&owned.route_to_gpu(1 - owned.rank()).unwrap().transport.as_str()));
        let (full, gradients, stream) = unsafe {
            ((cuda.alloc)(0, 4004) as *mut f32, (cuda.alloc)(0, 2002) as *mut Bf16, (cuda.stream_create)(0, 1))
        };
        cuda.write(gradients, &[ONE; 1001]);
        for minibatch in 0..4 {
            let range = shard.range();
            let mine: Vec<f32> = range.clone().map(|i| i as f32 + minibatch as f32).collect();
            cuda.write(shard.parameters_on_gpu(), &mine);
            // SAFETY: the buffers are of this GPU and large enough, and used after the stream has been waited for.
            let open = unsafe {
                if minibatch % 2 == 0 {
                    owned.publish_on(stream).unwrap()
                } else {
                    let mut opening = owned.publish_each();
                    opening.publish_on(&mut shard, stream).unwrap();
                    opening.publish_rest().unwrap()
                }
            };
            unsafe {
                open.gather_on(&shard, full, 1001, stream).unwrap();
                open.scatter_add_on(&shard, gradients, 1001, stream).unwrap();
                let gather = open.gather_start_on(&shard, full, 1001, stream).unwrap();
                let addition = open.scatter_add_start_on(&shard, gradients, 1001, stream).unwrap();
                gather.wait().unwrap();
                addition.wait().unwrap();
                assert_error!(open.gather_on(&shard, full, 1000, stream), Argument, "1000", "1001");
                assert_eq!((cuda.stream_wait)(stream), 0);
            }
            let wanted: Vec<f32> = (0..1001).map(|i| i as f32 + minibatch as f32).collect();
            assert_eq!(cuda.read(full, 1001), wanted);
            open.scatter_add(&beside, &[1.0; 10]).unwrap();
            owned = open.sync().unwrap();
            assert_eq!(cuda.read(shard.gradients_on_gpu(), range.len()), vec![4.0; range.len()]);
        }
        owned.release(shard).unwrap();
    });
}

#[test]
#[ignore = "needs the CUDA driver for tests"]
fn a_gpu_that_fails_is_an_error_of_all_ranks() {
    run(2, "a_gpu_that_fails_is_an_error_of_all_ranks", |context, cuda| {
        let mut owned = context.begin().unwrap();
        owned.register_all_on_gpu::<f32, f32>(&[Description::new("layer", 100)]).unwrap();
        let rank = owned.rank();
        // SAFETY: the driver's own stream.
        let stream = unsafe { (cuda.stream_create)(0, 1) };
        if rank == 1 {
            // SAFETY: it is meant.
            assert_eq!(unsafe { (cuda.fault)(stream, 700) }, 0);
            // SAFETY: see above.
            unsafe { (cuda.stream_wait)(stream) };
        }
        let ended = match owned.publish() {
            Ok(open) => open.sync().map(|_| ()).map_err(|failed| failed.error),
            Err(Failed { error, .. }) => Err(error),
        };
        assert_error!(ended, Device, "rank 1");
    });
}
