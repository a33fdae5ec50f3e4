/// Calls a function of the module API.
///
/// Every supported server has the function: on other servers [`super::entry`] refuses to load the
/// module.
macro_rules! api {
    ($function:ident ( $($argument:expr),* $(,)? )) => {{
        // The mutable static is written only while the module is being loaded.
        let function = redis_module::raw::$function;
        match function {
            Some(function) => function($($argument),*),
            None => $crate::ffi::api::missing(stringify!($function)),
        }
    }};
}
pub(super) use api;

#[cold]
pub(super) fn missing(name: &str) -> ! {
    panic!("the server lacks {name}, which was there when the module was loaded");
}
